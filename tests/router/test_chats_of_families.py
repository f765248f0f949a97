"""Chats of models whose templates and replies have forms of their own, as the OpenAI SDK meets them."""

import json
from pathlib import Path

import openai
import pytest
from fake_unit import FakeUnit, write_byte_tokenizer
from sdk_of_fleet import sdk_of

MODEL = "demo/bytes"
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "abc123def", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
TOLD = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": None, "reasoning": "Look it up.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "abc123def", "content": "21 degrees"},
]
GPT_OSS = (
    "{% for m in messages %}<|start|>{{ m.role }}"
    "{% if m.tool_calls and m.content and m.thinking %}{{ raise_exception('content and thinking') }}{% endif %}"
    "{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "{% for c in m.tool_calls or [] %}<|start|>assistant to=functions.{{ c.function.name }}<|channel|>commentary json"
    "<|message|>{{ c.function.arguments | tojson }}<|call|>{% endfor %}{% if m.content %}<|message|>{{ m.content }}"
    "<|end|>{% endif %}{% endfor %}{% if tools and add_generation_prompt %}{% endif %}<|start|>assistant"
)
DEEPSEEK = (
    "{{ tools | length }}{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "<call>{{ c.function.name + ' ' + c.function.arguments }}</call>{% endfor %}{% endfor %}<|assistant|>"
)
LLAMA_WITHOUT_TOOLS = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>{% endfor %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
KIMI = (
    "{{ tools | length }}{% for m in messages %}<|im_{{ m.role }}|>{% if m.role == 'tool' %}## Return of "
    "{{ m.tool_call_id }}\n{% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<|tool_call_begin|>{{ c.id }}"
    "<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}<|im_end|>{% endfor %}"
    "<|im_assistant|>assistant<|im_middle|>"
)

APERTUS = (
    "{% if tools %}{% for tool in tools %}{{ '// ' + tool.description + tool.name }}{% endfor %}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant_start|>{% if 'content' in m %}{{ m.content }}"
    "{% else %}{{ raise_exception('Invalid assistant message') }}{% endif %}{% if m.tool_calls %}<|tools_prefix|>["
    "{% for c in m.tool_calls %}{{ '{\"' + c.function.name + '\": ' + c.function.arguments + '}' }}{% endfor %}]"
    "<|tools_suffix|>{% endif %}{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}<|assistant_start|>"
)


@pytest.fixture
async def talk(serve, tmp_path: Path):
    """`talk(chat_template, text)` is a client of a fleet whose model says `text`."""
    clients = []

    async def start(chat_template: str, text: str) -> openai.AsyncOpenAI:
        served = await serve(FakeUnit(says=lambda _: text))
        folder = write_byte_tokenizer(tmp_path / "tokenizer", chat_template=chat_template)
        clients.append(sdk_of(served, folder))
        return clients[-1]

    yield start
    for client in clients:
        await client.close()


def prompt_of(sdk: openai.AsyncOpenAI) -> str:
    return bytes(sdk.unit.requests[-1].prompt_token_ids).decode()


async def test_gpt_oss__answers_in_channels__reasoning_and_answer_come_apart_streamed_or_not(talk) -> None:
    said = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Sunny."
    sdk = await talk(GPT_OSS, said)
    ask = {"model": MODEL, "messages": TOLD[:1]}
    message = (await sdk.chat.completions.create(**ask)).choices[0].message
    deltas = [chunk.choices[0].delta async for chunk in await sdk.chat.completions.create(**ask, stream=True)]

    assert (message.content, message.reasoning) == ("Sunny.", "Hm.")
    assert "".join(delta.content or "" for delta in deltas) == "Sunny."
    assert "".join(getattr(delta, "reasoning", None) or "" for delta in deltas) == "Hm."


async def test_gpt_oss__calls_a_tool__second_turn_has_thoughts_and_call(talk) -> None:
    said = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>" + CALL["function"]["arguments"]
    sdk = await talk(GPT_OSS, said)
    reply = await sdk.chat.completions.create(model=MODEL, messages=TOLD[:1], tools=[WEATHER])
    await sdk.chat.completions.create(model=MODEL, messages=TOLD, tools=[WEATHER])

    (call,) = reply.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris"})
    assert reply.choices[0].finish_reason == "tool_calls"
    assert "<|channel|>analysis<|message|>Look it up.<|end|>" in prompt_of(sdk)
    assert '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"city": "Paris"}' in prompt_of(
        sdk
    )


async def test_gpt_oss__thought_and_said_something_before_a_call__both_are_thoughts(talk) -> None:
    """As SDKs send back what they got; its template refuses the two side by side."""
    sdk = await talk(GPT_OSS, "<|channel|>final<|message|>Sunny.")
    user, called, result = TOLD
    await sdk.chat.completions.create(
        model=MODEL, messages=[user, called | {"content": "One moment."}, result], tools=[WEATHER]
    )

    assert "<|channel|>analysis<|message|>Look it up.\n\nOne moment.<|end|>" in prompt_of(sdk)


ONE_SYSTEM_MESSAGE = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


async def test_template_that_takes_one_system_message__agents_send_several__all_are_told(talk) -> None:
    """Codex sends instructions, a developer's message and, later on, more of those."""
    sdk = await talk(ONE_SYSTEM_MESSAGE, "Yes.")
    told = [
        {"role": "developer", "content": "Ask first."},
        {"role": "user", "content": "Hi"},
        {"role": "developer", "content": "Be quick."},
        {"role": "user", "content": "Go on"},
    ]
    await sdk.responses.create(model=MODEL, instructions="You code.", input=told)
    by_response = prompt_of(sdk)
    await sdk.chat.completions.create(model=MODEL, messages=[{"role": "system", "content": "You code."}, *told])

    assert by_response == prompt_of(sdk)
    assert by_response.split("<|im_start|>")[1:] == [
        "system\nYou code.\n\nAsk first.<|im_end|>\n",
        *(f"user\n{text}<|im_end|>\n" for text in ("Hi", "Be quick.", "Go on")),
        "assistant",
    ]


async def test_template_that_wants_turns__user_speaks_several_times__as_one(talk) -> None:
    alternating = (
        "{% for m in messages if m.role != 'system' %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Roles must alternate.') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    sdk = await talk(alternating, "Yes.")
    user, assistant = ({"role": role, "content": role[0]} for role in ("user", "assistant"))
    await sdk.chat.completions.create(model=MODEL, messages=[user, user, assistant, user])

    assert prompt_of(sdk) == "[user]u\n\nu[assistant]a[user]u"
    with pytest.raises(openai.BadRequestError, match=r"Roles must alternate"):
        await sdk.chat.completions.create(model=MODEL, messages=[user, user, assistant, assistant, user])


async def test_template__joins_arguments_to_text__is_given_them_as_the_model_wrote_them(talk) -> None:
    sdk = await talk(DEEPSEEK, "Sunny.")
    await sdk.chat.completions.create(model=MODEL, messages=TOLD, tools=[WEATHER])

    assert '<call>weather {"city": "Paris"}</call>' in prompt_of(sdk)


async def test_template_that_knows_no_tools__its_model_is_told_of_a_form__calls_are_read_in_that_one(talk) -> None:
    sdk = await talk(LLAMA_WITHOUT_TOOLS, '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>')
    reply = await sdk.chat.completions.create(model=MODEL, messages=TOLD[:1], tools=[WEATHER])

    (call,) = reply.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris"})
    assert "<tool_call>" in prompt_of(sdk)


async def test_kimi__calls_are_sent_back_under_ids_of_ours__its_template_shows_those_that_it_gives(talk) -> None:
    said = '<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{"city": "Rome"}<|tool_call_end|>'
    sdk = await talk(KIMI, f"<|tool_calls_section_begin|>{said}<|tool_calls_section_end|>")
    first = (await sdk.chat.completions.create(model=MODEL, messages=TOLD, tools=[WEATHER])).choices[0].message
    (call,) = first.tool_calls
    told = [*TOLD, first, {"role": "tool", "tool_call_id": call.id, "content": "30 degrees"}]
    await sdk.chat.completions.create(model=MODEL, messages=told, tools=[WEATHER])

    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Rome"})
    assert said.replace("functions.weather:0", "functions.weather:1") in prompt_of(sdk)
    for number, degrees in enumerate((21, 30)):
        assert f"## Return of functions.weather:{number}\n{degrees} degrees" in prompt_of(sdk)


async def test_apertus__calls_by_names_as_keys__second_turn_has_them_and_tools_are_told_as_functions(talk) -> None:
    sdk = await talk(APERTUS, 'See.<|tools_prefix|>[{"weather": {"city": "Paris"}}, {"clock": {}}]<|tools_suffix|>')
    reply = await sdk.chat.completions.create(model=MODEL, messages=TOLD, tools=[WEATHER])

    message = reply.choices[0].message
    assert message.content == "See."
    assert [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls] == [
        ("weather", {"city": "Paris"}),
        ("clock", {}),
    ]
    assert prompt_of(sdk).startswith("// weather<user>Weather?")
    assert '<|tools_prefix|>[{"weather": {"city": "Paris"}}]<|tools_suffix|><tool>21 degrees' in prompt_of(sdk)


async def test_apertus__what_is_in_its_marks_and_no_calls__is_text(talk) -> None:
    sdk = await talk(APERTUS, "<|tools_prefix|>[1]<|tools_suffix|>")
    reply = await sdk.chat.completions.create(model=MODEL, messages=TOLD[:1], tools=[WEATHER])

    message = reply.choices[0].message
    assert (message.content, message.tool_calls) == ("<|tools_prefix|>[1]<|tools_suffix|>", None)


async def test_function_gemma__texts_between_escapes__arguments_are_json(talk) -> None:
    said = "<start_function_call>call:weather{city:<escape>Paris, {TX}<escape>,days:2}<end_function_call>"
    sdk = await talk("{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}<start_function_call>", said)
    reply = await sdk.chat.completions.create(model=MODEL, messages=TOLD[:1], tools=[WEATHER])

    (call,) = reply.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "weather",
        {"city": "Paris, {TX}", "days": 2},
    )
