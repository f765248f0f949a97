"""Tools and reasoning in chat completions, as the OpenAI SDK meets them: a unit says what a model would."""

import json
from pathlib import Path

import openai
import pytest
from fake_unit import FakeUnit, write_byte_tokenizer
from sdk_of_fleet import sdk_of

from pdmux_actor.messages import StructuredKind

MODEL = "demo/bytes"
ASK = [{"role": "user", "content": "Weather in Paris?"}]
HERMES = (
    "{% if tools %}<tools>{% for t in tools %}{{ t.function.name }};{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}:{{ c.function.arguments.city }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is false %}<think></think>{% endif %}"
    "{% endif %}"
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "%s"}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Now", "parameters": SCHEMA}}
STRICT_NONSENSE = {"type": "function", "function": {"name": "nonsense", "strict": True, "parameters": {"not": {}}}}
CUSTOM_CALL = {"id": "c", "type": "custom", "custom": {"name": "x", "input": "y"}}
TIME = {"type": "function", "function": {"name": "time"}}


@pytest.fixture(scope="module")
def hermes_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_tokenizer(tmp_path_factory.mktemp("hermes"), chat_template=HERMES)


@pytest.fixture
async def talk(serve, hermes_folder):
    """`talk(text)` is a client of a fleet whose model says `text`."""
    clients = []

    async def start(text: str, **unit) -> openai.AsyncOpenAI:
        served = await serve(FakeUnit(says=lambda _: text, **unit))
        clients.append(sdk_of(served, hermes_folder))
        return clients[-1]

    yield start
    for client in clients:
        await client.close()


async def ask(sdk: openai.AsyncOpenAI, **body):
    return await sdk.chat.completions.create(**{"model": MODEL, "messages": ASK, **body})


def prompt_of(sdk) -> str:
    return bytes(sdk.unit.requests[-1].prompt_token_ids).decode()


async def test_tools__model_calls_two__calls_with_ids_and_finish_reason(talk) -> None:
    sdk = await talk("Let me look.\n" + CALL % "Paris" + "\n" + CALL % "Rome")
    reply = await ask(sdk, tools=[WEATHER, TIME])

    message = reply.choices[0].message
    assert message.content == "Let me look."
    assert [c.function.name for c in message.tool_calls] == ["weather", "weather"]
    assert [json.loads(c.function.arguments) for c in message.tool_calls] == [{"city": "Paris"}, {"city": "Rome"}]
    assert len({c.id for c in message.tool_calls}) == 2
    assert reply.choices[0].finish_reason == "tool_calls"
    assert prompt_of(sdk).startswith("<tools>weather;time;</tools>")


async def test_tools__streaming__text_first_then_whole_calls_and_no_mark_is_shown(talk) -> None:
    sdk = await talk("Let me look.\n" + CALL % "Paris" + "\n" + CALL % "Rome")
    chunks = [c async for c in await ask(sdk, tools=[WEATHER], stream=True)]

    deltas = [c.choices[0].delta for c in chunks]
    assert "".join(d.content or "" for d in deltas) == "Let me look."
    calls = [call for d in deltas for call in d.tool_calls or []]
    assert [c.index for c in calls] == [0, 1]
    assert [json.loads(c.function.arguments)["city"] for c in calls] == ["Paris", "Rome"]
    assert all(c.id and c.function.name == "weather" for c in calls)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_tools__sdks_streaming_helper__gathers_the_message(talk) -> None:
    sdk = await talk(CALL % "Paris")
    async with sdk.chat.completions.stream(model=MODEL, messages=ASK, tools=[WEATHER]) as stream:
        final = await stream.get_final_completion()

    assert final.choices[0].message.tool_calls[0].function.arguments == '{"city": "Paris"}'


async def test_tools__one_at_a_time__further_calls_are_left_out(talk) -> None:
    sdk = await talk(CALL % "Paris" + CALL % "Rome")
    reply = await ask(sdk, tools=[WEATHER], parallel_tool_calls=False)

    assert [json.loads(c.function.arguments)["city"] for c in reply.choices[0].message.tool_calls] == ["Paris"]


async def test_tools__two_choices__each_has_its_own_calls(talk) -> None:
    sdk = await talk(CALL % "Paris")
    reply = await ask(sdk, tools=[WEATHER], n=2)

    assert [c.message.tool_calls[0].function.name for c in reply.choices] == ["weather", "weather"]
    assert len({c.message.tool_calls[0].id for c in reply.choices}) == 2


async def test_tools__call_that_is_no_json__is_shown_as_text(talk) -> None:
    sdk = await talk("<tool_call>weather of Paris</tool_call>")
    reply = await ask(sdk, tools=[WEATHER])

    assert reply.choices[0].message.content == "<tool_call>weather of Paris</tool_call>"
    assert reply.choices[0].message.tool_calls is None
    assert reply.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("body", [{}, {"tools": [WEATHER], "tool_choice": "none"}])
async def test_tools__none_may_be_called__the_text_is_left_alone(talk, body) -> None:
    sdk = await talk(CALL % "Paris")
    reply = await ask(sdk, **body)

    assert reply.choices[0].message.content == CALL % "Paris"
    assert reply.choices[0].finish_reason == "stop"
    assert "<tools>" not in prompt_of(sdk)


@pytest.mark.parametrize("stream", [False, True])
async def test_tools__required__output_is_a_list_of_calls_by_schema(talk, stream) -> None:
    sdk = await talk('[{"name": "weather", "parameters": {"city": "Rome"}}]', constrains=True)
    asked = {"tools": [WEATHER, TIME], "tool_choice": "required", "parallel_tool_calls": False}
    if stream:
        chunks = [c async for c in await ask(sdk, **asked, stream=True)]
        calls = [call for c in chunks for call in c.choices[0].delta.tool_calls or []]
        assert not any(c.choices[0].delta.content for c in chunks)
    else:
        calls = (await ask(sdk, **asked)).choices[0].message.tool_calls

    assert [(c.function.name, c.function.arguments) for c in calls] == [("weather", '{"city": "Rome"}')]
    form = sdk.unit.requests[0].sampling.structured_output
    assert (form.kind, form.param) == (StructuredKind.JSON_SCHEMA, "tool_choice")
    schema = json.loads(form.text)
    assert (schema["type"], schema["minItems"], schema["maxItems"]) == ("array", 1, 1)
    assert [one["properties"]["name"]["enum"] for one in schema["items"]["anyOf"]] == [["weather"], ["time"]]


async def test_tools__named__output_is_its_arguments(talk) -> None:
    sdk = await talk('{"city": "Rome"}', constrains=True)
    reply = await ask(sdk, tools=[TIME, WEATHER], tool_choice={"type": "function", "function": {"name": "weather"}})

    call = reply.choices[0].message.tool_calls[0].function
    assert (call.name, call.arguments) == ("weather", '{"city": "Rome"}')
    assert json.loads(sdk.unit.requests[0].sampling.structured_output.text) == SCHEMA


async def test_tools__required_and_cut_off__text_and_length(talk) -> None:
    sdk = await talk('[{"name": "weather", "parameters": {"city": "Rome"}}]', constrains=True)
    reply = await ask(sdk, tools=[WEATHER], tool_choice="required", max_tokens=20)

    assert reply.choices[0].message.content == '[{"name": "weather",'
    assert reply.choices[0].finish_reason == "length"


async def test_tools__conversation_goes_on__template_sees_calls_and_answers(talk) -> None:
    sdk = await talk("Sunny.")
    call = {"id": "abc123def", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Look it up."},
        {"role": "tool", "tool_call_id": "abc123def", "content": "21 degrees"},
    ]
    reply = await ask(sdk, messages=messages, tools=[WEATHER])

    assert reply.choices[0].message.content == "Sunny."
    prompt = prompt_of(sdk)
    assert "<think>Look it up.</think><tool_call>weather:Paris</tool_call>" in prompt
    assert "<|im_start|>tool\n21 degrees<|im_end|>" in prompt


async def test_tools__body_beyond_64_kib__is_read_the_same(talk) -> None:
    sdk = await talk("Sunny.", max_model_len=200_000)
    call = {"id": "abc123def", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        {"role": "user", "content": "x" * 70_000},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abc123def", "content": [{"type": "text", "text": "21 degrees"}]},
    ]
    await ask(sdk, messages=messages, tools=[WEATHER])

    assert "<tool_call>weather:Paris</tool_call>" in prompt_of(sdk)
    assert "<|im_start|>tool\n21 degrees<|im_end|>" in prompt_of(sdk)


def allowed(mode: str, *names: str) -> dict:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


async def test_tool_choice__allowed_tools__model_is_told_of_these_only(talk) -> None:
    sdk = await talk('[{"name": "time", "parameters": {}}]', constrains=True)
    await ask(sdk, tools=[WEATHER, TIME], tool_choice=allowed("auto", "time"))
    assert prompt_of(sdk).startswith("<tools>time;</tools>")
    assert sdk.unit.requests[-1].sampling.structured_output is None

    reply = await ask(sdk, tools=[WEATHER, TIME], tool_choice=allowed("required", "time"))

    assert [call.function.name for call in reply.choices[0].message.tool_calls] == ["time"]
    assert '"weather"' not in sdk.unit.requests[-1].sampling.structured_output.text


async def test_functions__legacy_form__is_answered_in_it(talk) -> None:
    sdk = await talk(CALL % "Paris")
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
        {"role": "function", "name": "weather", "content": "cold"},
    ]
    reply = await ask(sdk, messages=messages, functions=[WEATHER["function"]])

    choice = reply.choices[0]
    assert (choice.message.function_call.name, choice.message.tool_calls) == ("weather", None)
    assert choice.finish_reason == "function_call"
    assert "weather:Oslo" in prompt_of(sdk)


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"tool_choice": "required"}, "tool_choice", "there are no 'tools'"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "no"}}},
            "tool_choice",
            "'no', which is not among",
        ),
        ({"tools": [WEATHER, WEATHER]}, "tools", "a name of its own"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "pattern"),
        ({"tools": [WEATHER], "tool_choice": "required"}, "tool_choice", "No unit that serves"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "function"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "is no function"),
        (
            {"tools": [WEATHER], "tool_choice": allowed("auto", "weather", "no")},
            "tool_choice",
            "'no', which is not among",
        ),
        (
            {"tools": [WEATHER, STRICT_NONSENSE], "tool_choice": allowed("auto", "nonsense")},
            "tools[1].function.parameters.not",
            "cannot be held to",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [CUSTOM_CALL]}]},
            "messages[0].tool_calls[0]",
            "is no function",
        ),
    ],
)
async def test_tools__that_do_not_fit_together__are_refused_by_name(talk, body, param, says) -> None:
    sdk = await talk("never said")
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(sdk, **body)

    assert refused.value.param == param
    assert says in refused.value.message
    assert sdk.unit.requests == []


async def test_tools__template_knows_none__they_are_told_in_a_system_message(serve) -> None:
    unit = FakeUnit(says=lambda _: CALL % "Paris")
    served = await serve(unit)
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as sdk:
        call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
        messages = [
            *ASK,
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "cold"},
        ]
        reply = await ask(sdk, messages=messages, tools=[WEATHER])

    assert reply.choices[0].message.tool_calls[0].function.name == "weather"
    prompt = bytes(unit.requests[0].prompt_token_ids).decode()
    assert prompt.startswith("<system># Tools")
    assert '"name": "weather", "description": "Now"' in prompt
    assert '<assistant><tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>' in prompt
    assert "<user><tool_response>\ncold\n</tool_response>" in prompt


async def test_reasoning__thinking_model__thoughts_apart_and_counted(talk) -> None:
    sdk = await talk("<think>\nParis is far.\n</think>\n\nSunny.")
    reply = await ask(sdk)
    chunks = [c async for c in await ask(sdk, stream=True, stream_options={"include_usage": True})]

    message = reply.choices[0].message
    assert (message.content, message.reasoning, message.reasoning_content) == ("Sunny.", *["Paris is far."] * 2)
    deltas = [c.choices[0].delta for c in chunks if c.choices]
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == "Paris is far."
    assert "".join(d.content or "" for d in deltas) == "Sunny."
    for usage in (reply.usage, chunks[-1].usage):
        assert usage.completion_tokens_details.reasoning_tokens == len("<think>\nParis is far.\n</think>") - 6
        assert usage.completion_tokens == len("<think>\nParis is far.\n</think>\n\nSunny.")


async def test_reasoning__then_a_call__all_three_parts(talk) -> None:
    sdk = await talk("<think>Look it up.</think>\n\nOne moment.\n" + CALL % "Paris")
    message = (await ask(sdk, tools=[WEATHER])).choices[0].message

    assert (message.reasoning_content, message.content) == ("Look it up.", "One moment.")
    assert message.tool_calls[0].function.name == "weather"


@pytest.mark.parametrize(
    ("body", "thinks"),
    [
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "high"}, True),
        ({"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}, False),
        ({"reasoning_effort": "none", "extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}, True),
    ],
)
async def test_reasoning__effort_or_switch__reaches_the_template(talk, body, thinks) -> None:
    sdk = await talk("Sunny.")
    await ask(sdk, **body)

    assert prompt_of(sdk).endswith("<|im_start|>assistant\n" + ("" if thinks else "<think></think>"))


async def test_reasoning__not_to_be_told__is_left_out(talk) -> None:
    sdk = await talk("<think>Secret.</think>Sunny.")
    reply = await ask(sdk, extra_body={"include_reasoning": False})

    assert reply.choices[0].message.content == "Sunny."
    assert not hasattr(reply.choices[0].message, "reasoning_content")


async def test_tools__unit_dies_in_a_call__it_goes_on_elsewhere(serve, hermes_folder) -> None:
    fuse = [20]
    units = [FakeUnit(unit_id=f"u{i}", fuse=fuse, says=lambda _: CALL % "Paris") for i in range(2)]
    served = await serve(*units)
    served.folder = hermes_folder
    served.show(*units)
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as sdk:
        reply = await ask(sdk, tools=[WEATHER])

    assert reply.choices[0].message.tool_calls[0].function.arguments == '{"city": "Paris"}'
    assert sum(len(unit.requests) for unit in units) == 2


STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}


@pytest.mark.parametrize("parallel", [None, False])
async def test_strict_tool__auto__calls_are_held_to_the_schema_and_text_is_free(talk, parallel) -> None:
    sdk = await talk("One moment.\n" + CALL % "Rome", constrains=True)
    more = {} if parallel is None else {"parallel_tool_calls": parallel}
    reply = await ask(sdk, tools=[STRICT, TIME], **more)

    form = sdk.unit.requests[0].sampling.structured_output
    tag = json.loads(form.text)["format"]
    assert (form.kind, form.param, tag["type"]) == (StructuredKind.STRUCTURAL_TAG, "tools", "triggered_tags")
    assert [one["begin"] for one in tag["tags"]] == [
        '<tool_call>\n{"name": "weather", "arguments": ',
        '<tool_call>\n{"name": "time", "arguments": ',
    ]
    assert [one["content"]["json_schema"] for one in tag["tags"]] == [SCHEMA, {"type": "object"}]
    assert tag["stop_after_first"] is (parallel is False)
    (choice,) = reply.choices
    assert (choice.message.content, choice.finish_reason) == ("One moment.", "tool_calls")
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Rome"}


@pytest.mark.parametrize(
    ("unit", "body"),
    [
        ({"constrains": True}, {"tools": [WEATHER]}),  # no tool is strict
        ({"constrains": False}, {"tools": [STRICT]}),  # no unit could
        ({"constrains": True}, {"tools": [STRICT], "tool_choice": "none"}),
    ],
)
async def test_strict_tool__not_asked_for_or_not_possible__nothing_is_masked(talk, unit, body) -> None:
    sdk = await talk("Sunny.", **unit)
    await ask(sdk, **body)

    assert sdk.unit.requests[0].sampling.structured_output is None


async def test_strict_tool__schema_that_cannot_be_kept_to__names_the_place(talk) -> None:
    sdk = await talk("never said", constrains=True)
    odd = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 3}}}
    tool = {"type": "function", "function": {"name": "odd", "parameters": odd, "strict": True}}
    with pytest.raises(openai.BadRequestError, match="cannot be held to") as refused:
        await ask(sdk, tools=[WEATHER, tool])

    assert refused.value.param == "tools[1].function.parameters.properties.n.multipleOf"
