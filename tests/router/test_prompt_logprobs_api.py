"""`echo` with `logprobs`, `prompt_logprobs` and `max_tokens` 0: what clients see, and what units are asked."""

import httpx
import openai
import pytest
from fake_unit import FakeUnit, prompt_logprob, speech_tokens

from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.frames import Delta, PromptToken
from router.access.api_keys import KeyEntry, KeyRing, make_key
from router.openai.parameters import MAX_PROMPT_LOGPROBS
from router.openai.prompt_logprobs import echoed_logprobs

MODEL = "demo/bytes"
PROMPT = "Grüße"


async def post(served, path: str = "/v1/completions", **body):
    whole = {"model": MODEL, "temperature": 0, "max_tokens": 2, **body}
    if "chat" in path:
        whole["messages"] = [{"role": "user", "content": "hi"}]
    else:
        whole.setdefault("prompt", PROMPT)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        return await client.post(path, json=whole)


async def test_echo__with_logprobs__is_openais_legacy_shape(serve) -> None:
    served = await serve(unit := FakeUnit())
    reply = await post(served, echo=True, logprobs=2)

    (choice,) = reply.json()["choices"]
    said = bytes(speech_tokens(unit.requests[0])[:2]).decode()
    assert choice["text"] == PROMPT + said
    logprobs, ids = choice["logprobs"], list(PROMPT.encode())
    assert logprobs["tokens"] == [bytes([b]).decode(errors="replace") for b in ids] + list(said)
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["token_logprobs"][1 : len(ids)] == [prompt_logprob(b) for b in ids[1:]]
    assert logprobs["top_logprobs"][0] is None
    neighbours = {
        bytes([ids[1] + 1]).decode(): prompt_logprob(ids[1]) / 2,
        bytes([ids[1] + 2]).decode(): prompt_logprob(ids[1]) / 2 - 1,
    }
    assert logprobs["top_logprobs"][1] == neighbours
    assert logprobs["text_offset"] == [0, 1, 2, 2, 3, 3, 4, 5, 6]  # a character of two bytes is two tokens
    assert len({len(values) for values in logprobs.values()}) == 1


@pytest.mark.parametrize("echo", [True, False])
async def test_max_tokens_0__nothing_is_generated(serve, echo: bool) -> None:
    served = await serve(unit := FakeUnit())
    asks = {"echo": True, "logprobs": 0} if echo else {"prompt_logprobs": 0}

    reply = await post(served, max_tokens=0, **asks)

    (choice,) = reply.json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (PROMPT if echo else "", "length")
    assert reply.json()["usage"]["completion_tokens"] == 0
    if echo:
        assert len(choice["logprobs"]["tokens"]) == len(PROMPT.encode())
    assert unit.requests[0].sampling.prompt_logprobs == 0


async def test_max_tokens_0__without_anything_of_the_prompt__is_refused(serve) -> None:
    reply = await post(await serve(FakeUnit()), max_tokens=0)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "max_tokens"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_prompt_logprobs__are_vllms_shape(serve, path: str) -> None:
    served = await serve(unit := FakeUnit())

    body = (await post(served, path, prompt_logprobs=1, n=2)).json()

    (ids, _) = (request.prompt_token_ids for request in unit.requests)
    shown = body if "chat" in path else body["choices"][1]
    first, *others = shown["prompt_logprobs"]
    assert first is None
    for token_id, entries in zip(ids[1:], others, strict=True):
        assert entries[str(token_id)]["logprob"] == prompt_logprob(token_id)
        assert entries[str(token_id)]["rank"] == 2
        assert entries[str((token_id + 1) % 256)]["rank"] == 1
    assert "prompt_logprobs" not in (await post(served, path)).json()


async def test_echo__streamed__says_the_prompt_with_the_first_event(serve) -> None:
    served = await serve(FakeUnit())
    client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    stream = await client.completions.create(
        model=MODEL, prompt=PROMPT, echo=True, logprobs=1, max_tokens=3, stream=True, temperature=0
    )
    chunks = [chunk.choices[0] async for chunk in stream]

    document = (await post(served, echo=True, logprobs=1, max_tokens=3)).json()["choices"][0]
    assert chunks[0].text.startswith(PROMPT)
    for name, values in document["logprobs"].items():
        assert [v for c in chunks for v in getattr(c.logprobs, name)] == values
    assert "".join(c.text for c in chunks) == document["text"]


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 20, "prompt": [7] * 4000, "n": 2}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 20, "prompt": [[7] * 700] * 10}, "logprobs"),
    ],
)
async def test_prompt_logprobs__streamed_or_too_many__are_refused(serve, extra, param: str) -> None:
    reply = await post(await serve(unit := FakeUnit()), **extra)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert not unit.requests


async def test_most_logprobs__of_one_request__fit(serve) -> None:
    served = await serve(FakeUnit(max_model_len=1 << 20))
    reply = await post(served, prompt=[65] * (MAX_PROMPT_LOGPROBS // 2), echo=True, logprobs=1, max_tokens=1)
    assert reply.status_code == 200
    assert len(reply.json()["choices"][0]["logprobs"]["tokens"]) == MAX_PROMPT_LOGPROBS // 2 + 1


@pytest.mark.parametrize(("fuse", "asked_again"), [(0, True), (4, False)])
async def test_unit__dies__prompt_is_scored_once_more_only_if_nobody_has_heard_of_it(serve, fuse, asked_again) -> None:
    fuses = [fuse]
    units = [FakeUnit(unit_id=name, fuse=fuses) for name in ("unit-a", "unit-b")]
    served = await serve(*units)

    choice = (await post(served, echo=True, logprobs=0, max_tokens=8)).json()["choices"][0]

    asked = sorted((len(r.output_token_ids), r.sampling.prompt_logprobs) for unit in units for r in unit.requests)
    assert asked == ([(0, 0), (0, 0)] if asked_again else [(0, 0), (fuse, None)])
    assert len(choice["logprobs"]["tokens"]) == len(PROMPT.encode()) + 8
    assert choice["logprobs"]["token_logprobs"].count(None) == 1


async def test_unit__does_not_know_them__is_the_clients_fault(serve) -> None:
    refusal = Delta(0, 0, "", [], finish=FinishReason.ERROR, error="not here", param="prompt_logprobs")
    reply = await post(await serve(FakeUnit(fail=lambda request: refusal)), echo=True, logprobs=1)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt_logprobs")


def test_offsets__of_tokens_that_the_text_lacks__are_those_of_what_follows() -> None:
    tokens = [b"<s>", b" Hello", b" wor", b"ld", b"</s>"]  # SentencePiece puts a space before the first word
    prompt = [PromptToken(i, token, None if i == 0 else -1.0) for i, token in enumerate(tokens)]
    assert echoed_logprobs(prompt, "Hello world", 0)["text_offset"] == [0, 0, 5, 9, 11]


def test_alternatives__that_look_alike__the_most_probable_is_shown() -> None:
    prompt = [PromptToken(0, b"a"), PromptToken(1, b"b", -1.0, 3, ((2, b"\xc3", -0.1), (3, b"\xc4", -0.5)))]
    assert echoed_logprobs(prompt, "ab", 2)["top_logprobs"] == [None, {"\ufffd": -0.1}]


async def test_max_tokens_0__with_a_key__is_charged_the_prompt_alone(serve) -> None:
    served = await serve(FakeUnit())
    key = make_key()
    served.gateway.access.set_keys(KeyRing([KeyEntry(key_id=key.key_id, name="ann", hash=key.hash)]))
    body = {"model": MODEL, "prompt": PROMPT, "echo": True, "max_tokens": 0}
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        reply = await client.post("/v1/completions", json=body, headers={"x-api-key": key.secret})

    assert reply.status_code == 200
    (figures,) = served.gateway.access.figures({})
    assert figures.tokens == len(PROMPT.encode()) == reply.json()["usage"]["total_tokens"]


async def test_prompt_logprobs__first_character_incomplete__first_token_is_timed_when_it_comes(serve) -> None:
    served = await serve(FakeUnit(says=lambda request: "ü"))  # two tokens, the first of which is not shown

    await post(served, prompt_logprobs=0, max_tokens=2)

    async with httpx.AsyncClient(base_url=served.url) as client:
        metrics = (await client.get("/metrics")).text
    assert f'muxfleet_time_to_first_token_seconds_count{{model="{MODEL}"}} 1.0' in metrics
    assert f'muxfleet_inter_token_latency_seconds_count{{model="{MODEL}"}} 1.0' in metrics
