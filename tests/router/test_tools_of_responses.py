"""Tools of /v1/responses other than functions: custom ones and namespaces of them; outputs that are no text."""

import json

import openai
import pytest
from fake_unit import FakeUnit, write_byte_tokenizer
from test_tools import HERMES, SCHEMA

MODEL = "demo/bytes"
GRAMMAR = 'start: "*** Begin Patch" /.+/'
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Changes files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR},
}
WEATHER = {"type": "function", "name": "weather", "parameters": SCHEMA}
TEXT = '*** Begin Patch\n+"é"'
SAID = (
    "I change it.\n<tool_call>\n" + json.dumps({"name": "apply_patch", "arguments": {"input": TEXT}}) + "\n</tool_call>"
)
DESCRIBED = (
    "{% for tool in tools or [] %}{{ tool.function.name }}: {{ tool.function.description }} "
    "{{ tool.function.parameters | tojson }};{% endfor %}"
)


@pytest.fixture
async def talk(serve, tmp_path):
    """`talk(text)` is a client of a fleet whose model says `text`."""
    clients = []

    async def start(text: str, **unit) -> openai.AsyncOpenAI:
        served = await serve(FakeUnit(says=lambda _: text, **unit))
        served.folder = write_byte_tokenizer(tmp_path / "hermes", chat_template=DESCRIBED + HERMES)
        served.show(*served.units)
        sdk = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)
        sdk.unit = served.units[0]
        clients.append(sdk)
        return sdk

    yield start
    for client in clients:
        await client.close()


async def ask(sdk: openai.AsyncOpenAI, **body):
    return await sdk.responses.create(**{"model": MODEL, "input": "Change it.", "tools": [WEATHER, PATCH], **body})


def prompt_of(sdk) -> str:
    return bytes(sdk.unit.requests[-1].prompt_token_ids).decode()


async def test_custom_tool__model_is_told__of_a_function_of_one_string_and_of_the_grammar(talk) -> None:
    sdk = await talk("Sunny.")
    response = await ask(sdk)

    assert f"apply_patch: Changes files.\n\nThe input follows this grammar (lark):\n{GRAMMAR} " in prompt_of(sdk)
    assert '{"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}' in prompt_of(sdk)
    assert response.tools[1].to_dict() == PATCH


@pytest.mark.parametrize("stream", [False, True])
async def test_custom_tool__is_called__item_has_its_text(talk, stream) -> None:
    sdk = await talk(SAID)
    if stream:
        async with sdk.responses.stream(model=MODEL, input="Change it.", tools=[WEATHER, PATCH]) as events:
            seen = [event async for event in events]
            response = await events.get_final_response()
        assert [e.sequence_number for e in seen] == list(range(len(seen)))
        told = [e.delta for e in seen if e.type == "response.custom_tool_call_input.delta"]
        assert ["".join(told)] == [e.input for e in seen if e.type == "response.custom_tool_call_input.done"] == [TEXT]
    else:
        response = await ask(sdk)

    text, call = response.output
    assert (text.type, call.type, call.name, call.input) == ("message", "custom_tool_call", "apply_patch", TEXT)


async def test_response__history_has_calls_of_tools_that_openai_runs__they_are_left_out(talk) -> None:
    sdk = await talk("Sunny.")
    user = {"role": "user", "content": "Weather?"}
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    ran = {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "container_id": "c", "outputs": None}
    listed = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []}
    response = await sdk.responses.create(model=MODEL, input=[user, searched, ran, listed, user])
    conversation = await sdk.conversations.create(items=[searched, user])

    assert response.output_text == "Sunny."
    assert bytes(sdk.unit.requests[-1].prompt_token_ids).decode().count("Weather?") == 2
    assert [item.type for item in (await sdk.conversations.items.list(conversation.id)).data] == ["message"]
    with pytest.raises(openai.BadRequestError, match="'input' must be"):
        await sdk.responses.create(model=MODEL, input=[searched])


async def test_response__tools_come_with_the_input__model_is_told_of_them(talk) -> None:
    sdk = await talk('<tool_call>{"name": "clock", "arguments": {}}</tool_call>')
    clock = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}, "strict": False}
    again = {**clock, "name": "weather", "description": "Says it anew."}
    added = {"type": "additional_tools", "role": "developer", "tools": [clock, again]}
    response = await ask(sdk, input=[{"role": "user", "content": "Late?"}, added])
    without = await ask(sdk, input=[{"role": "user", "content": "Late?"}, added], tools=openai.omit)

    assert [tool.name for tool in response.tools] == ["weather", "apply_patch", "clock"]
    assert [tool.name for tool in without.tools] == ["clock", "weather"]
    assert [item.name for item in response.output] == ["clock"]
    assert "weather: Says it anew." in prompt_of(sdk)


SHELL = {"action": {"commands": ["ls"], "timeout_ms": None}, "status": "completed", "call_id": "c"}
RAN = [{"stdout": "a.txt\n", "stderr": "no b\n", "outcome": {"type": "exit", "exit_code": 2}}]
PATCHED = {"type": "update_file", "path": "a", "diff": "+x"}
CLICK = {"type": "click", "x": 1, "y": 2, "button": "left"}
SCREENSHOT = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA=="}


@pytest.mark.parametrize(
    ("items", "call", "output"),
    [
        (
            [{"type": "shell_call", **SHELL}, {"type": "shell_call_output", "call_id": "c", "output": RAN}],
            'shell:{"commands":["ls"]}',
            "a.txt\nno b\n[exit code 2]",
        ),
        (
            [
                {"type": "local_shell_call", "id": "l", **SHELL, "action": {"type": "exec", "command": ["ls"]}},
                {"type": "local_shell_call_output", "id": "c", "output": "a.txt"},
            ],
            'local_shell:{"type":"exec","command":["ls"]}',
            "a.txt",
        ),
        (
            [
                {"type": "apply_patch_call", "call_id": "c", "operation": PATCHED, "status": "completed"},
                {"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": None},
            ],
            'apply_patch:{"type":"update_file","path":"a","diff":"+x"}',
            "failed",
        ),
        (
            [
                {"type": "computer_call", "id": "x", "call_id": "c", "action": CLICK, "pending_safety_checks": []},
                {"type": "computer_call_output", "call_id": "c", "output": SCREENSHOT},
            ],
            'computer:{"type":"click","x":1,"y":2,"button":"left"}',
            "[an image, left out: this model reads text only]",
        ),
        (
            [
                {"type": "tool_search_call", "id": "t", "call_id": None, "arguments": {"query": "mail"}},
                {
                    "type": "tool_search_output",
                    "id": "u",
                    "call_id": None,
                    "tools": [{"type": "function", "name": "m"}],
                },
            ],
            'tool_search:{"query":"mail"}',
            '[{"type":"function","name":"m"}]',
        ),
        (
            [
                {"type": "program", "id": "p", "call_id": "c", "code": "1 + 1", "fingerprint": "f"},
                {"type": "program_output", "id": "q", "call_id": "c", "result": "2", "status": "completed"},
            ],
            'program:{"code":"1 + 1"}',
            "2",
        ),
        (
            [{"type": "mcp_call", "id": "m", "server_label": "wiki", "name": "ask", "arguments": "{}", "output": "42"}],
            "wiki__ask:{}",
            "42",
        ),
        (
            [
                {"type": "mcp_approval_request", "id": "r", "server_label": "wiki", "name": "ask", "arguments": "{}"},
                {"type": "mcp_approval_response", "approval_request_id": "r", "approve": True},
                {
                    "type": "mcp_call",
                    "id": "m",
                    "server_label": "wiki",
                    "name": "ask",
                    "arguments": "{}",
                    "output": None,
                    "error": {"type": "http_error", "code": 502, "message": "gone"},
                },
            ],
            "wiki__ask:{}",
            '{"type":"http_error","code":502,"message":"gone"}',
        ),
    ],
)
@pytest.mark.parametrize("kept", [False, True])
async def test_response__history_has_calls_of_openais_own_tools__model_sees_them_and_what_they_said(
    talk, items, call, output, kept
) -> None:
    sdk = await talk("Done.")
    user = {"role": "user", "content": "Go on."}
    if kept:
        conversation = await sdk.conversations.create(items=items)
        response = await sdk.responses.create(model=MODEL, input=[user], conversation=conversation.id)
    else:
        response = await sdk.responses.create(model=MODEL, input=[*items, user])

    listed = (await sdk.responses.input_items.list(response.id)).data
    assert [f"{item.name}:{item.arguments}" for item in listed if item.type == "function_call"] == [call]
    assert f"<tool_call>{call.partition(':')[0]}:" in prompt_of(sdk)
    assert f"<|im_start|>tool\n{output}<|im_end|>" in prompt_of(sdk)


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "function_call_output", "call_id": "c", "output": [{"text": "x"}]}, "input[0].output[0].type"),
        ({"type": "compaction", "encrypted_content": "gA"}, "input[0].type"),
        ({"type": "additional_tools", "role": "developer", "tools": None}, "input[0].tools"),
    ],
)
async def test_response__item_that_cannot_be_told__is_refused_with_its_place(talk, item, param) -> None:
    sdk = await talk("never said")
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.responses.create(model=MODEL, input=[item])

    assert refused.value.param == param


async def test_response__of_openais_own_services__null_changes_nothing_and_a_value_is_refused(talk) -> None:
    sdk = await talk("Sunny.")
    nothing = dict.fromkeys(("conversation", "moderation", "prompt", "background"))
    inert = {"context_management": [{"type": "compaction"}], "access_programs": {}}
    response = await ask(sdk, extra_body={**nothing, **inert})
    for name, value in {"moderation": {"model": "m"}, "prompt": {"id": "p"}}.items():
        with pytest.raises(openai.BadRequestError, match="is not implemented") as refused:
            await ask(sdk, extra_body={name: value})
        assert (refused.value.param, refused.value.code) == (name, "unsupported_parameter")

    assert response.output_text == "Sunny."


@pytest.mark.parametrize("by_id", [False, True])
async def test_custom_tool__its_output_is_sent__model_sees_call_and_output(talk, by_id) -> None:
    sdk = await talk(SAID)
    first = await ask(sdk)
    call = first.output[-1]
    output = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Done!"}
    if by_id:
        await ask(sdk, input=[output], previous_response_id=first.id)
    else:
        await ask(sdk, input=[{"role": "user", "content": "Change it."}, *first.output, output])

    assert "<tool_call>apply_patch:" in prompt_of(sdk)
    assert "<|im_start|>tool\nDone!<|im_end|>" in prompt_of(sdk)


async def test_custom_tool__must_be_called__output_is_its_text(talk) -> None:
    sdk = await talk('{"input": "x"}', constrains=True)
    response = await ask(sdk, tool_choice={"type": "custom", "name": "apply_patch"})

    assert [(item.type, item.input) for item in response.output] == [("custom_tool_call", "x")]
    assert json.loads(sdk.unit.requests[0].sampling.structured_output.text)["required"] == ["input"]


async def test_custom_tool__called_with_other_arguments__what_the_model_wrote_is_the_input(talk) -> None:
    sdk = await talk('<tool_call>{"name": "apply_patch", "arguments": {"patch": "x"}}</tool_call>')

    assert (await ask(sdk)).output[0].input == '{"patch": "x"}'


FILES = {
    "type": "namespace",
    "name": "mcp__files__",
    "description": "Files",
    "tools": [{"type": "function", "name": "read", "parameters": SCHEMA}, PATCH],
}


async def test_turn__text_comes_after_its_calls__outputs_still_follow_the_calls(talk) -> None:
    """Haystack sends it so. A template may refuse outputs that follow no calls."""
    sdk = await talk("Sunny.")
    items = [
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Rome"}'},
        {"role": "assistant", "content": "One moment."},
        {"type": "function_call_output", "call_id": "c1", "output": "21"},
        {"role": "assistant", "content": "It is 21."},
        {"role": "user", "content": "And now?"},
    ]
    await ask(sdk, input=items)

    turn = (
        "<think>Hm.</think>One moment.<tool_call>weather:Rome</tool_call><|im_end|>\n<|im_start|>tool\n21<|im_end|>\n"
    )
    assert turn + "<|im_start|>assistant\nIt is 21.<|im_end|>" in prompt_of(sdk)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("called", "kind"), [("read", "function_call"), ("apply_patch", "custom_tool_call")], ids=["function", "custom"]
)
async def test_namespace__its_tool_is_called__item_has_both_names_and_goes_back(talk, called, kind, stream) -> None:
    arguments = {"input": TEXT} if kind == "custom_tool_call" else {"city": "Rome"}
    call = json.dumps({"name": f"mcp__files__{called}", "arguments": arguments})
    sdk = await talk(f"<tool_call>{call}</tool_call>")
    answer = await ask(sdk, tools=[WEATHER, FILES], stream=stream)
    response = [event async for event in answer][-1].response if stream else answer
    (item,) = response.output
    told = {key: value for key, value in item.to_dict().items() if key not in ("async", "caller")}
    output = {"type": f"{kind}_output", "call_id": item.call_id, "output": "Found."}
    await ask(sdk, tools=[WEATHER, FILES], input=[{"role": "user", "content": "Read it."}, told, output])

    assert (item.type, item.namespace, item.name) == (kind, "mcp__files__", called)
    assert f"<tool_call>mcp__files__{called}:" in prompt_of(sdk)
    assert response.tools[1].to_dict()["tools"][0]["name"] == "read"


async def test_namespace__schema_of_its_tool_cannot_be_kept_to__is_named_as_sent(talk) -> None:
    sdk = await talk("never said")
    odd = {"type": "function", "name": "odd", "parameters": {"not": {}}, "strict": True}
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(sdk, tools=[{"type": "web_search"}, {**FILES, "tools": [PATCH, odd]}])

    assert refused.value.param == "tools[1].tools[1].parameters.not"


async def test_response__output_of_a_tool_with_an_image__agent_goes_on_and_is_told(talk) -> None:
    """Codex' `view_image`, whose output is sent from then on."""
    sdk = await talk("Sunny.")
    image = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    parts = [{"type": "input_text", "text": "Seen: "}, image]
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": parts}
    await ask(sdk, input=[{"role": "user", "content": "Look."}, call, output])

    assert "tool\nSeen: [an image, left out: this model reads text only]<|im_end|>" in prompt_of(sdk)
