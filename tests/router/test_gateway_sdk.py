"""The gateway as the OpenAI SDK meets it."""

import asyncio

import openai
import pytest
from fake_unit import SPEECH, FakeUnit, eventually

MODEL = "demo/bytes"
HELLO = [{"role": "user", "content": "hello"}]
TEXT_20 = SPEECH.encode()[:20].decode()


@pytest.fixture
async def client(serve):
    served = await serve(FakeUnit())
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as sdk:
        sdk.unit = served.units[0]
        yield sdk


async def test_chat__not_streaming__answers_with_usage(client) -> None:
    reply = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=20, temperature=0)

    assert reply.choices[0].message.content == TEXT_20
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason == "length"
    prompt_tokens = len("<user>hello\n<assistant>")
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (
        prompt_tokens,
        20,
        prompt_tokens + 20,
    )
    assert bytes(client.unit.requests[0].prompt_token_ids) == b"<user>hello\n<assistant>"


async def test_chat__streaming_with_usage__role_first_then_text_finish_usage(client) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_completion_tokens=20,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]

    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT_20
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 20
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1


async def test_chat__n_choices__differ_by_seed_and_first_keeps_clients(client) -> None:
    reply = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=8, n=3, seed=5)

    assert [c.index for c in reply.choices] == [0, 1, 2]
    seeds = {r.request_id[-3]: r.sampling.seed for r in client.unit.requests}
    assert seeds["0"] == 5
    assert len(set(seeds.values())) == 3
    assert reply.usage.completion_tokens == 24


async def test_chat__no_seed__each_request_draws_its_own(client) -> None:
    for _ in range(2):
        await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2)

    first, second = (r.sampling.seed for r in client.unit.requests)
    assert first != second


async def test_chat__logprobs__one_entry_per_token_streaming_or_not(client) -> None:
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 9, "logprobs": True, "top_logprobs": 2, "temperature": 0}
    reply = await client.chat.completions.create(**asked)
    stream = await client.chat.completions.create(**asked, stream=True)
    streamed = [e async for c in stream for e in (c.choices[0].logprobs.content if c.choices[0].logprobs else [])]

    entries = reply.choices[0].logprobs.content
    assert [e.bytes for e in entries] == [[b] for b in SPEECH.encode()[:9]]
    assert len(entries[0].top_logprobs) == 2
    assert [e.bytes for e in streamed] == [e.bytes for e in entries]


async def test_chat__stop_string__ends_before_it(client) -> None:
    reply = await client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=50, temperature=0, stop=["Küche"]
    )

    assert reply.choices[0].message.content == "Grüße aus der "
    assert reply.choices[0].finish_reason == "stop"


async def test_chat__no_max_tokens__gets_what_the_context_leaves(client) -> None:
    stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    await anext(aiter(stream))
    await stream.close()

    request = client.unit.requests[0]
    assert request.sampling.max_tokens == 4096 - len(request.prompt_token_ids)


async def test_completions__prompts_of_every_kind__one_choice_each(client) -> None:
    for prompt, count in (("ab", 1), (["ab", "cd"], 2), ([1, 2, 3], 1), ([[1, 2], [3]], 2)):
        reply = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=4, temperature=0)
        assert [c.text for c in reply.choices] == [SPEECH.encode()[:4].decode()] * count
    assert client.unit.requests[-1].prompt_token_ids in ((1, 2), (3,))


async def test_completions__echo__repeats_prompt(client) -> None:
    reply = await client.completions.create(model=MODEL, prompt="ab", max_tokens=2, temperature=0, echo=True)

    assert reply.choices[0].text == "abGr"


async def test_completions__logprobs__legacy_shape_with_offsets(client) -> None:
    reply = await client.completions.create(model=MODEL, prompt="ab", max_tokens=2, temperature=0, logprobs=1)

    logprobs = reply.choices[0].logprobs
    assert logprobs.tokens == ["G", "r"]
    assert logprobs.text_offset == [0, 1]
    assert logprobs.top_logprobs[0] == {"G": -0.5}


async def test_completions__streaming_several_prompts__every_index_finishes(client) -> None:
    stream = await client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=6, temperature=0, stream=True)
    texts, finished = {0: "", 1: ""}, set()
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
        if chunk.choices[0].finish_reason:
            finished.add(chunk.choices[0].index)

    assert texts == {0: "Grüß"[:4], 1: "Grüß"[:4]} or set(texts.values()) == {
        SPEECH.encode()[:5].decode(errors="replace")
    }
    assert finished == {0, 1}


async def test_models__list_and_retrieve__carry_status_and_length(client) -> None:
    listed = [m async for m in client.models.list()]
    retrieved = await client.models.retrieve(MODEL)

    assert [m.id for m in listed] == [MODEL]
    assert retrieved.max_model_len == 4096
    assert retrieved.status == "ready"


async def test_sampling__parameters__reach_the_unit(client) -> None:
    await client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=7,
        temperature=0.5,
        top_p=0.9,
        seed=3,
        extra_body={"top_k": 40, "min_tokens": 2, "ignore_eos": True},
    )

    sampling = client.unit.requests[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (7, 0.5, 0.9, 40)
    assert (sampling.seed, sampling.min_tokens, sampling.ignore_eos, sampling.logprobs) == (3, 2, True, None)


async def test_errors__sdk__raises_its_classes_with_request_id(client) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="no/such", messages=HELLO)
    with pytest.raises(openai.BadRequestError) as long:
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x" * 5000}])

    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    assert missing.value.request_id
    assert long.value.code == "context_length_exceeded"
    assert "maximum context length is 4096 tokens" in long.value.message


async def test_cancellation__sdk_closes_stream__unit_gets_cancel(client) -> None:
    client.unit.token_gap_s = 0.01
    stream = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1000, stream=True)
    await anext(aiter(stream))
    await stream.close()

    await eventually(lambda: client.unit.cancelled)
    assert client.unit.cancelled == [client.unit.requests[0].request_id]


async def test_sync_sdk__streaming_and_not__works(serve) -> None:
    served = await serve(FakeUnit())

    def talk() -> tuple[str, str]:
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as sdk:
            asked = {"model": MODEL, "messages": HELLO, "max_tokens": 20, "temperature": 0}
            whole = sdk.chat.completions.create(**asked).choices[0].message.content
            parts = [c.choices[0].delta.content or "" for c in sdk.chat.completions.create(**asked, stream=True)]
            return whole, "".join(parts)

    assert await asyncio.to_thread(talk) == (TEXT_20, TEXT_20)
