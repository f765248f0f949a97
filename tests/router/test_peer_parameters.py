"""Parameters of vLLM's and SGLang's own, as the OpenAI SDK sends them in `extra_body`."""

import json

import httpx
import openai
import pytest
from fake_unit import FakeUnit, write_byte_tokenizer
from tokenizers import Tokenizer, processors

from pdmux_actor.messages import StructuredKind
from router.access.api_keys import KeyEntry, KeyRing, make_key
from router.errors import InvalidRequest
from router.openai.body import parse_body
from router.openai.chat import ChatCompletionRequest
from router.openai.completions import CompletionRequest
from router.openai.peer_parameters import (
    INERT_PEER_PARAMETERS,
    REFUSED_PEER_PARAMETERS,
    InertChatParameters,
    InertPeerParameters,
)
from router.request_terms import Priority

MODEL = "demo/bytes"
HELLO = [{"role": "user", "content": "hello"}]
PROMPT = list(b"<user>hello\n<assistant>")
CHAT = {"model": MODEL, "messages": HELLO, "max_tokens": 6, "temperature": 0}


@pytest.fixture
async def talk(serve):
    served = await serve(FakeUnit())
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as sdk:
        sdk.served, sdk.unit = served, served.units[0]
        yield sdk


def chat_of(**extra) -> ChatCompletionRequest:
    return parse_body(json.dumps({**CHAT, **extra}).encode(), ChatCompletionRequest)


async def test_token_ids__chat__stand_beside_the_answer_and_the_prompt(talk) -> None:
    reply = await talk.chat.completions.create(**CHAT, n=2, extra_body={"return_token_ids": True})

    assert reply.prompt_token_ids == PROMPT
    for choice in reply.choices:
        assert choice.prompt_token_ids == PROMPT
        assert bytes(choice.token_ids).decode(errors="replace") == choice.message.content


async def test_token_ids__chat_stream__prompt_once_and_every_token_once(talk) -> None:
    stream = await talk.chat.completions.create(**CHAT, stream=True, extra_body={"return_token_ids": True})
    chunks = [chunk async for chunk in stream]

    assert [chunk.prompt_token_ids for chunk in chunks if hasattr(chunk, "prompt_token_ids")] == [PROMPT]
    streamed = [t for chunk in chunks for t in getattr(chunk.choices[0], "token_ids", None) or []]
    whole = await talk.chat.completions.create(**CHAT, extra_body={"return_token_ids": True})
    assert streamed == whole.choices[0].token_ids
    assert len(streamed) == 6


async def test_token_ids__completions_of_two_prompts__each_choice_has_those_of_its_own(talk) -> None:
    asked = {"model": MODEL, "prompt": ["ab", "c"], "max_tokens": 4, "n": 2, "extra_body": {"return_token_ids": True}}
    reply = await talk.completions.create(**asked)
    stream = [chunk async for chunk in await talk.completions.create(**asked, stream=True)]

    prompts = [list(b"ab"), list(b"ab"), list(b"c"), list(b"c")]
    assert [choice.prompt_token_ids for choice in reply.choices] == prompts
    assert [len(choice.token_ids) for choice in reply.choices] == [4] * 4
    for index, prompt in enumerate(prompts):
        mine = [c.choices[0] for c in stream if c.choices[0].index == index]
        assert [c.prompt_token_ids for c in mine if hasattr(c, "prompt_token_ids")] == [prompt]
        assert sum(len(c.token_ids) for c in mine) == 4


async def test_token_ids__not_asked_for__are_not_in_the_answer(talk) -> None:
    reply = await talk.chat.completions.with_raw_response.create(**CHAT)

    assert "token_ids" not in reply.text


async def test_cache_salt__any__reaches_the_unit_and_parts_prefixes(talk) -> None:
    for extra in ({}, {"cache_salt": "a"}, {"cache_salt": "a", "extra_key": "b"}, {"extra_key": "ab"}):
        await talk.chat.completions.create(**CHAT, extra_body=extra)

    salts = [request.cache_salt for request in talk.unit.requests]
    assert salts[0] == ""
    assert len(set(salts)) == 4, "what is salt and what is key makes a difference, too"


async def test_session__sent_in_the_body__is_the_conversation(talk, monkeypatch) -> None:
    seen = []
    offer = talk.served.gateway.scheduler.offer
    monkeypatch.setattr(talk.served.gateway.scheduler, "offer", lambda r, now_s: seen.append(r) or offer(r, now_s))
    await talk.chat.completions.create(**CHAT, extra_body={"session_id": "s1"})
    header = {"x-muxfleet-conversation": "h1"}
    await talk.chat.completions.create(**CHAT, extra_body={"session_id": "s1"}, extra_headers=header)

    assert [request.conversation for request in seen] == ["s1", "h1"]


@pytest.mark.parametrize(
    ("extra", "header", "priority", "tier"),
    [
        ({}, None, Priority.NORMAL, None),
        ({"service_tier": "auto"}, None, Priority.NORMAL, "default"),
        ({"service_tier": "auto"}, "low", Priority.LOW, "flex"),
        ({"service_tier": "flex"}, None, Priority.LOW, "flex"),
        ({"service_tier": "priority"}, None, Priority.HIGH, "priority"),
        ({"service_tier": "fast"}, None, Priority.HIGH, "priority"),
        ({"service_tier": "ultrafast"}, None, Priority.HIGH, "priority"),
        ({"service_tier": "priority"}, "low", Priority.LOW, "flex"),
        ({"priority": -3}, None, Priority.HIGH, None),
        ({"priority": 7}, None, Priority.LOW, None),
        ({"priority": 0, "service_tier": "flex"}, None, Priority.NORMAL, "default"),
    ],
)
async def test_priority__in_the_body__is_the_class_that_the_request_waits_in(
    talk, monkeypatch, extra, header, priority, tier
) -> None:
    seen = []
    offer = talk.served.gateway.scheduler.offer
    monkeypatch.setattr(talk.served.gateway.scheduler, "offer", lambda r, now_s: seen.append(r) or offer(r, now_s))
    headers = {} if header is None else {"x-muxfleet-priority": header}
    reply = await talk.chat.completions.create(**CHAT, extra_body=extra, extra_headers=headers)
    stream = await talk.chat.completions.create(**CHAT, extra_body=extra, extra_headers=headers, stream=True)

    assert {chunk.service_tier async for chunk in stream} == {tier}
    assert [request.priority for request in seen] == [priority] * 2
    assert reply.service_tier == tier


async def test_priority__beyond_what_the_key_may__is_the_keys_and_the_answer_says_so(serve) -> None:
    served = await serve(FakeUnit())
    key = make_key()
    served.gateway.access.set_keys(
        KeyRing([KeyEntry(key_id=key.key_id, name="ann", hash=key.hash, priority=Priority.NORMAL)])
    )
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=key.secret, max_retries=0) as sdk:
        tiers = [(await sdk.chat.completions.create(**CHAT, service_tier=t)).service_tier for t in ("priority", "flex")]
        said = await sdk.responses.create(model=MODEL, input="hi", max_output_tokens=4, service_tier="priority")

    assert tiers == ["default", "flex"]
    assert said.service_tier == "default"


@pytest.mark.parametrize("name", sorted(REFUSED_PEER_PARAMETERS))
def test_peer_parameter__would_change_the_answer__is_refused_by_its_name(name) -> None:
    schema = ChatCompletionRequest if name in ChatCompletionRequest.model_fields else CompletionRequest
    prompt = {"messages": HELLO} if schema is ChatCompletionRequest else {"prompt": "x"}
    other = {"add_generation_prompt": False, "separate_reasoning": False}
    with pytest.raises(InvalidRequest) as refused:
        parse_body(json.dumps({"model": "m", **prompt, name: other.get(name, "on")}).encode(), schema)

    assert (refused.value.param, refused.value.code) == (name, None), "the table of errors says unsupported_parameter"
    assert "is not implemented" in refused.value.message
    assert parse_body(json.dumps({"model": "m", **prompt, name: None}).encode(), schema).model == "m"


async def test_add_special_tokens__a_text_has_them_and_a_chat_not_unless_they_are_sent(talk, tmp_path) -> None:
    folder = talk.served.folder = write_byte_tokenizer(tmp_path / "beginning")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    template = processors.TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", 256)])
    tokenizer.post_processor = processors.Sequence([template])
    tokenizer.save(str(folder / "tokenizer.json"))
    talk.served.show(talk.unit)
    for sent in ({}, {"add_special_tokens": False}, {"add_special_tokens": True}):
        await talk.completions.create(model=MODEL, prompt="x", max_tokens=1, extra_body=sent)
        await talk.chat.completions.create(**CHAT, extra_body=sent)

    texts, chats = talk.unit.requests[::2], talk.unit.requests[1::2]
    assert [r.prompt_token_ids for r in texts] == [(256, 120), (120,), (256, 120)]
    assert [r.prompt_token_ids[0] for r in chats] == [PROMPT[0], PROMPT[0], 256]


@pytest.mark.parametrize(
    ("wish", "effort", "shown"),
    [
        ({"reasoning": {"effort": "high"}}, "high", True),
        ({"reasoning": {"enabled": True}}, None, True),
        ({"reasoning": {"enabled": False}}, "none", True),
        ({"reasoning": {"effort": "low", "exclude": True}}, "low", False),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "high", True),
        ({"reasoning": {"exclude": True}, "include_reasoning": True}, None, True),
        ({"reasoning": {}}, None, True),
        ({}, None, True),
    ],
)
def test_reasoning__as_openrouter_writes_it__is_the_effort_and_whether_it_is_shown(wish, effort, shown) -> None:
    request = chat_of(**wish)

    assert (request.asked_effort, request.shows_reasoning) == (effort, shown)


@pytest.mark.parametrize(
    ("wish", "tokens"),
    [
        ({"reasoning": {"max_tokens": 100}}, 100),
        ({"reasoning": {"max_tokens": 100}, "thinking_token_budget": 7}, 7),
        ({"reasoning": {"max_tokens": 100}, "thinking_token_budget": -1}, None),
        ({"thinking_token_budget": 0}, 0),
        ({"reasoning": {"effort": "low"}}, None),
    ],
)
def test_thinking_budget__by_any_name__is_that(wish, tokens) -> None:
    assert chat_of(**wish).asked_thinking_tokens == tokens


async def test_documents__come_into_a_template_that_reads_them(talk, tmp_path) -> None:
    template = "{% for d in documents %}[{{ d.text }}]{% endfor %}{{ messages[0].content }}"
    talk.served.folder = write_byte_tokenizer(tmp_path / "rag", chat_template=template)
    talk.served.show(talk.unit)
    await talk.chat.completions.create(**CHAT, extra_body={"documents": [{"text": "a"}, {"text": "b"}]})

    assert bytes(talk.unit.requests[0].prompt_token_ids) == b"[a][b]hello"


async def test_documents__template_reads_none__says_so(talk) -> None:
    with pytest.raises(openai.BadRequestError, match="takes no 'documents'"):
        await talk.chat.completions.create(**CHAT, extra_body={"documents": [{"text": "a"}]})


@pytest.mark.parametrize(
    ("extra", "kind", "text"),
    [
        ({"json_schema": '{"type": "integer"}'}, StructuredKind.JSON_SCHEMA, '{"type":"integer"}'),
        ({"structural_tag": '{"type": "structural_tag"}'}, StructuredKind.STRUCTURAL_TAG, '{"type": "structural_tag"}'),
    ],
)
def test_form__by_sglangs_names__is_that_form(extra, kind, text) -> None:
    form = parse_body(json.dumps({"model": "m", "prompt": "x", **extra}).encode(), CompletionRequest).structured_output

    assert (form.kind, form.text, form.param) == (kind, text, next(iter(extra)))


def test_peer_parameters__without_effect__change_nothing_that_is_sampled() -> None:
    values = {dict: {}, bool: True, float: 0.5, int: 3, str: "x"}
    extras = {}
    for group in (InertPeerParameters, InertChatParameters):
        for name, field in group.model_fields.items():
            kinds = [kind for kind in values if kind.__name__ in str(field.annotation)]
            extras[name] = "left" if name == "truncation_side" else values[kinds[0]]
    assert extras.keys() == INERT_PEER_PARAMETERS

    def sampling(request):
        return request.sampling(max_tokens=6, choice=0, fallback_seed=1)

    assert sampling(chat_of(**extras)) == sampling(chat_of())


async def test_peer_parameter__misspelt__is_told_what_was_meant(talk) -> None:
    for wrong, right in (
        ("cache_slat", "cache_salt"),
        ("return_token_id", "return_token_ids"),
        ("sesion_id", "session_id"),
    ):
        with pytest.raises(openai.BadRequestError, match=f"did you mean {right}") as refused:
            await talk.chat.completions.create(**CHAT, extra_body={wrong: "x"})
        assert refused.value.code == "unknown_parameter"


async def test_peer_parameters__with_values_they_cannot_have__are_400s_that_name_them(talk) -> None:
    wrong = {"cache_salt": "", "session_id": "s" * 129, "priority": 1.5, "service_tier": "gold", "return_token_ids": 1}
    async with httpx.AsyncClient(base_url=talk.served.url, timeout=60) as http:
        for name, value in wrong.items():
            reply = await http.post("/v1/chat/completions", json={**CHAT, name: value})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)
