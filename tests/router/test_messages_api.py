"""/v1/messages as Anthropic's SDK meets it: a unit says what a model would."""

from typing import TYPE_CHECKING, get_args, get_type_hints

import httpx
import pytest
from fake_unit import FakeUnit, write_byte_tokenizer
from test_tools import CALL, HERMES, SCHEMA

from pdmux_actor.messages import StructuredKind

if TYPE_CHECKING:
    import anthropic

MODEL = "demo/bytes"
ASK = [{"role": "user", "content": "Weather in Paris?"}]
WEATHER = {"name": "weather", "description": "Now", "input_schema": SCHEMA}
PREFILLED = [*ASK, {"role": "assistant", "content": "It is"}]
THOUGHT = "<think>\nLook it up.\n</think>\n\nOne moment.\n" + CALL % "Paris"


@pytest.fixture
async def talk(serve, tmp_path):
    """`talk(text)` is a client of a fleet whose model says `text`."""
    clients = []

    async def start(text: str, template: str = HERMES, **unit) -> "anthropic.AsyncAnthropic":
        import anthropic  # a second or two, which processes that only collect this file are spared

        served = await serve(FakeUnit(says=lambda _: text, **unit))
        served.folder = write_byte_tokenizer(tmp_path / "hermes", chat_template=template)
        served.show(*served.units)
        sdk = anthropic.AsyncAnthropic(base_url=served.url, api_key="x", max_retries=0)
        sdk.unit, sdk.url = served.units[0], served.url
        clients.append(sdk)
        return sdk

    yield start
    for client in clients:
        await client.close()


async def ask(sdk: "anthropic.AsyncAnthropic", **body):
    return await sdk.messages.create(**{"model": MODEL, "messages": ASK, "max_tokens": 500, **body})


def prompt_of(sdk) -> str:
    return bytes(sdk.unit.requests[-1].prompt_token_ids).decode()


async def test_message__plain__text_usage_and_stop_reason(talk) -> None:
    sdk = await talk("Sunny.")
    message = await ask(sdk, system="Be brief.", stop_sequences=["END"], extra_body={"temperature": 0.5, "top_k": 3})

    assert [block.text for block in message.content] == ["Sunny."]
    assert (message.type, message.role, message.stop_reason) == ("message", "assistant", "end_turn")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (len(prompt_of(sdk)), 6)
    assert prompt_of(sdk).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWeather in Paris?")
    sampling = sdk.unit.requests[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (0.5, 3, 500)
    assert sdk.unit.requests[0].stop == ("END",)


async def test_message__cut_off__says_max_tokens(talk) -> None:
    sdk = await talk("Sunny and warm.")
    assert (await ask(sdk, max_tokens=5)).stop_reason == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
async def test_message__thinking_text_and_tool__are_blocks_in_order(talk, stream) -> None:
    sdk = await talk(THOUGHT)
    asked = {"tools": [WEATHER], "thinking": {"type": "enabled", "budget_tokens": 1024}}
    if stream:
        async with sdk.messages.stream(model=MODEL, messages=ASK, max_tokens=500, **asked) as events:
            kinds = [event.type async for event in events]
            message = await events.get_final_message()
        assert kinds[0] == "message_start"
        assert kinds[-1] == "message_stop"
    else:
        message = await ask(sdk, **asked)

    thinking, text, call = message.content
    assert (thinking.type, thinking.thinking) == ("thinking", "Look it up.")
    assert (text.type, text.text) == ("text", "One moment.")
    assert (call.type, call.name, call.input) == ("tool_use", "weather", {"city": "Paris"})
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens == len(THOUGHT)
    assert message.usage.input_tokens == len(prompt_of(sdk))


async def test_message__thinking_not_asked_for__is_switched_off_and_left_out(talk) -> None:
    sdk = await talk(THOUGHT)
    message = await ask(sdk, tools=[WEATHER])

    assert [block.type for block in message.content] == ["text", "tool_use"]
    assert prompt_of(sdk).endswith("<think></think>")


async def test_message__conversation_with_results__reaches_the_template(talk) -> None:
    sdk = await talk("Sunny.")
    messages = [
        *ASK,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Paris"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "21 degrees"}]},
                {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    await ask(sdk, messages=messages, tools=[WEATHER])

    called = "<think>Hm.</think><tool_call>weather:Paris</tool_call><|im_end|>\n"
    assert called + "<|im_start|>tool\n21 degrees<|im_end|>\n" in prompt_of(sdk)
    assert "<|im_start|>user\nAnd?<|im_end|>" in prompt_of(sdk)


async def test_message__results_of_tools_that_are_no_text__agent_goes_on_and_is_told(talk) -> None:
    """Claude Code reads images and documents, and sends them from then on."""
    sdk = await talk("Sunny.")
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    found = [{"type": "text", "text": "Rome"}]
    results = [
        {"type": "text", "text": "Here:"},
        {"type": "image", "source": source},
        {"type": "document", "source": source},
        {"type": "search_result", "source": "map", "title": "Places", "content": found},
        {"type": "tool_reference", "tool_name": "weather"},
    ]
    messages = [
        *ASK,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": results}]},
    ]
    await ask(sdk, messages=messages, tools=[WEATHER])

    told = "[{}, left out: this model reads text only]"
    lines = ["Here:", told.format("an image"), told.format("a document"), "Places", "map", "Rome", "weather"]
    assert "<|im_start|>tool\n" + "\n".join(lines) + "<|im_end|>" in prompt_of(sdk)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"type": "any"}, '[{"name": "weather", "parameters": {"city": "Rome"}}]'),
        ({"type": "tool", "name": "weather"}, '{"city": "Rome"}'),
    ],
)
async def test_message__call_is_required__output_follows_the_schema(talk, choice, said) -> None:
    sdk = await talk(said, constrains=True)
    message = await ask(sdk, tools=[WEATHER], tool_choice=choice)

    assert [(block.name, block.input) for block in message.content] == [("weather", {"city": "Rome"})]
    assert sdk.unit.requests[0].sampling.structured_output is not None


async def test_message__fields_about_anthropics_own_service__change_nothing(talk) -> None:
    sdk = await talk("Sunny.")
    service = {
        "diagnostics": {"previous_message_id": None},
        "speed": "fast",
        "user_profile_id": "ann",
        "container": "c",
        "fallbacks": "default",
        "fallback_credit_token": "t",
        "billing_policy": {"type": "billing_policy", "bill_to": "self"},
    }
    message = await ask(sdk, extra_body=service)

    assert [block.text for block in message.content] == ["Sunny."]


async def test_message__thread__is_refused_so_that_the_sdk_goes_on_without(talk) -> None:
    """The tool runner of Anthropic's SDK for JavaScript asks for one with every conversation."""
    sdk = await talk("never said")
    body = {"model": MODEL, "messages": ASK, "max_tokens": 5, "thread": {"type": "create"}}
    async with httpx.AsyncClient(base_url=sdk.url, timeout=60) as http:
        reply = await http.post("/v1/messages", json=body)
        plain = await http.post("/v1/messages", json={**body, "thread": None})

    error = reply.json()["error"]
    assert (reply.status_code, error["type"], plain.status_code) == (400, "invalid_request_error", 200)
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


async def test_message__thinking_of_each_kind_that_the_sdk_has__is_taken(talk) -> None:
    from anthropic.types import thinking_config_param

    sdk = await talk(THOUGHT)
    kinds = [get_args(get_type_hints(one)["type"])[0] for one in get_args(thinking_config_param.ThinkingConfigParam)]
    told = [await ask(sdk, thinking={"type": kind, "budget_tokens": 1024}) for kind in kinds]

    assert {kind: message.content[0].type == "thinking" for kind, message in zip(kinds, told, strict=True)} == {
        kind: kind != "disabled" for kind in kinds
    }


async def test_message__strict_tool__calls_are_held_to_the_schema(talk) -> None:
    sdk = await talk(CALL % "Rome", constrains=True)
    await ask(sdk, tools=[{**WEATHER, "strict": True}])

    assert sdk.unit.requests[0].sampling.structured_output.kind is StructuredKind.STRUCTURAL_TAG


async def test_message__output_format__is_a_schema_of_the_answer(talk) -> None:
    sdk = await talk("{}", constrains=True)
    await ask(sdk, extra_body={"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}})

    assert '"city"' in sdk.unit.requests[0].sampling.structured_output.text


async def test_message__last_one_is_the_assistants__is_continued_and_not_repeated(talk) -> None:
    sdk = await talk(" sunny.")
    message = await ask(sdk, messages=PREFILLED)
    counted = await sdk.messages.count_tokens(model=MODEL, messages=PREFILLED)

    assert prompt_of(sdk).endswith("<|im_start|>assistant\nIt is")
    assert [block.text for block in message.content] == [" sunny."]
    assert counted.input_tokens == message.usage.input_tokens
    await ask(sdk, messages=[*ASK, {"role": "assistant", "content": ""}])
    assert prompt_of(sdk).endswith("<|im_start|>assistant\n<think></think>")


async def test_message__template_rewrites_the_one_to_continue__is_refused_without_telling_it(talk) -> None:
    import anthropic

    sdk = await talk("never said", template=HERMES.replace("m.content }}", "m.content | upper }}"))
    with pytest.raises(anthropic.BadRequestError) as refused:
        await ask(sdk, messages=PREFILLED)

    assert "does not appear" in refused.value.message
    assert "It is" not in refused.value.message


@pytest.mark.parametrize("streams", [False, True])
async def test_message__stop_sequence_ends_it__is_told_which(talk, streams) -> None:
    sdk = await talk("Sunny. END of it")
    asks = {"model": MODEL, "messages": ASK, "max_tokens": 500, "stop_sequences": ["STOP", " END"]}
    if streams:
        async with sdk.messages.stream(**asks) as stream:
            message = await stream.get_final_message()
    else:
        message = await sdk.messages.create(**asks)

    assert [block.text for block in message.content] == ["Sunny."]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " END")


@pytest.mark.parametrize("said", ["Sunny.", "übel"])  # the second begins with half a character
async def test_message__streams__start_tells_what_was_cached(talk, said) -> None:
    sdk = await talk(said, cached_tokens=7)
    async with sdk.messages.stream(model=MODEL, messages=ASK, max_tokens=500) as events:
        start = await anext(event async for event in events)

    usage = start.message.usage
    assert (start.type, usage.cache_read_input_tokens) == ("message_start", 7)
    assert usage.input_tokens == len(prompt_of(sdk)) - 7


async def test_message__conversation_began_at_anthropic__its_own_tools_are_left_out_and_texts_told(talk) -> None:
    sdk = await talk("Yes.")
    found = {"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "e", "page_age": None}
    ran = [
        {"type": "text", "text": "I search."},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "secret"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [found]},
        {"type": "mcp_tool_use", "id": "m", "name": "secret", "server_name": "s", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "m", "is_error": False, "content": "secret"},
        {"type": "text", "text": "Sunny.", "citations": [{"type": "web_search_result_location", "url": "u"}]},
    ]
    told = [
        {"type": "search_result", "source": "map", "title": "Places", "content": [{"type": "text", "text": "Rome"}]}
    ]
    turns = [*ASK, {"role": "assistant", "content": ran}, {"role": "user", "content": told}]
    message = await ask(sdk, messages=turns)
    counted = await sdk.messages.count_tokens(model=MODEL, messages=turns)

    assert message.content[0].text == "Yes."
    assert counted.input_tokens == message.usage.input_tokens
    assert "<|im_start|>assistant\nI search.\nSunny.<|im_end|>" in prompt_of(sdk)
    assert "<|im_start|>user\nPlaces\nmap\nRome<|im_end|>" in prompt_of(sdk)
    assert "secret" not in prompt_of(sdk)


async def test_count_tokens__any_body__is_what_the_message_takes(talk) -> None:
    sdk = await talk("Sunny.")
    counted = await sdk.messages.count_tokens(model=MODEL, messages=ASK, tools=[WEATHER], system="Be brief.")
    message = await ask(sdk, tools=[WEATHER], system="Be brief.")

    assert counted.input_tokens == message.usage.input_tokens
    assert len(sdk.unit.requests) == 1


@pytest.mark.parametrize(
    ("body", "status", "kind", "says"),
    [
        ({"model": "no/such"}, 404, "not_found_error", "does not exist"),
        ({"max_tokens": None}, 400, "invalid_request_error", "'max_tokens'"),
        ({"temprature": 1}, 400, "invalid_request_error", "did you mean temperature?"),
        ({"temperature": 7}, 400, "invalid_request_error", "less than or equal to 2"),
        ({"stop_sequences": [""]}, 400, "invalid_request_error", "'stop_sequences'"),
        ({"thinking": {"type": "adaptive"}, "temperature": 7}, 400, "invalid_request_error", "'temperature'"),
        ({"messages": []}, 400, "invalid_request_error", "is empty"),
        ({"messages": [*ASK, {"role": "assistant", "content": "I "}]}, 400, "invalid_request_error", "whitespace"),
        ({"messages": PREFILLED, "thinking": {"type": "adaptive"}}, 400, "invalid_request_error", "with thinking"),
        (
            {"messages": PREFILLED, "tools": [WEATHER], "tool_choice": {"type": "any"}},
            400,
            "invalid_request_error",
            "whole answer",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            400,
            "invalid_request_error",
            "'messages[0].content[0].type': 'image' is not implemented",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "invalid_request_error", "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "there are no 'tools'"),
        ({"tools": [{**WEATHER, "name": "a b"}]}, 400, "invalid_request_error", "'tools[0].name'"),
        (
            {"tools": [{**WEATHER, "input_schema": {"not": {}}, "strict": True}]},
            400,
            "invalid_request_error",
            "'tools[0].input_schema.not'",
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"properties": {"a": 1}}}}},
            400,
            "invalid_request_error",
            "'output_config.format.schema.properties.a'",
        ),
    ],
)
async def test_message__refused__in_anthropics_shape(talk, body, status, kind, says) -> None:
    sdk = await talk("never said")
    asked = {"model": MODEL, "messages": ASK, "max_tokens": 9, **body}
    async with httpx.AsyncClient(base_url=sdk.url, timeout=60) as http:
        reply = await http.post("/v1/messages", json=asked)

    error = reply.json()
    assert (reply.status_code, error["type"], error["error"]["type"]) == (status, "error", kind)
    assert says in error["error"]["message"]
    assert sdk.unit.requests == []


async def test_message__stream_breaks__ends_with_an_error_event(serve) -> None:
    units = [FakeUnit(unit_id=f"u{i}", fuse=[5 + 5 * i, 6 + 5 * i, 7 + 5 * i]) for i in range(4)]
    served = await serve(*units)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        asked = {"model": MODEL, "messages": ASK, "max_tokens": 40, "stream": True}
        events = (await http.post("/v1/messages", json=asked)).text

    assert "event: message_start" in events
    assert "[DONE]" not in events
    last = events.strip().split("\n\n")[-1]
    assert last.startswith('event: error\ndata: {"type":"error","error":{"type":"api_error"')


async def test_message__path_that_is_not_there__404_in_anthropics_shape(talk) -> None:
    sdk = await talk("x")
    async with httpx.AsyncClient(base_url=sdk.url, timeout=60) as http:
        reply = await http.post("/v1/messages/batches", json={})

    assert (reply.status_code, reply.json()["type"]) == (404, "error")
