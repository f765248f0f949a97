"""Items of the Responses API's input and of kept conversations: messages, calls of tools, their outputs, reasoning."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import msgspec

REFERENCE = "item_reference"


class InputPart(msgspec.Struct, gc=False):
    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal"]
    text: str = ""
    refusal: str = ""


class ShellOutcome(msgspec.Struct, gc=False):
    type: Literal["exit", "timeout"]
    exit_code: int = 0


class OutputPart(msgspec.Struct, gc=False):
    """Holds some of what a tool found; a shell's parts have no type, but an outcome. An image there is no choice of the
    client's: refused, it would end the conversation.
    """

    type: Literal["input_text", "output_text", "text", "input_image", "computer_screenshot", "input_file"] | None = None
    text: str = ""
    stdout: str = ""
    stderr: str = ""
    outcome: ShellOutcome | None = None

    def __post_init__(self) -> None:
        """Raises ValueError, which msgspec tells with its place."""
        if self.type is None and self.outcome is None:
            raise ValueError("Object missing required field `type`")

    @property
    def shown(self) -> str:
        match self.type:
            case "input_image" | "computer_screenshot":
                return "[an image, left out: this model reads text only]"
            case "input_file":
                return "[a file, left out: this model reads text only]"
        if self.outcome is None:
            return self.text
        code = self.outcome.exit_code
        ended = "[timed out]" if self.outcome.type == "timeout" else f"[exit code {code}]" if code else ""
        return "\n".join(text.removesuffix("\n") for text in (self.stdout, self.stderr, ended) if text)


ItemType = Literal[
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
]
# Of tools that OpenAI runs: in a conversation that began there, and left out as its tools are. The last one is tools
# that come with the input (`ResponsesBody`), and nothing said.
_OfOpenAI = Literal[
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "additional_tools",
]
_OF_OPENAI = frozenset(get_args(_OfOpenAI))
# Of tools that OpenAI's models know without being told. All there is of them is text, but for screenshots.
_Builtin = Literal["local_shell_call", "shell_call", "apply_patch_call", "computer_call", "tool_search_call", "program"]
_BuiltinOutput = Literal[
    "local_shell_call_output",
    "shell_call_output",
    "apply_patch_call_output",
    "computer_call_output",
    "tool_search_output",
    "program_output",
]
_BUILTINS, _BUILTIN_OUTPUTS = frozenset(get_args(_Builtin)), frozenset(get_args(_BuiltinOutput))


class InputItem(msgspec.Struct, gc=False):
    """A message, a call of a tool, its output, reasoning, or a reference to one that was answered before, by its `id`;
    each uses some of the fields.
    """

    type: Literal[ItemType, _OfOpenAI, _Builtin, _BuiltinOutput, "mcp_call", "item_reference"] = "message"
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"] = "user"
    content: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    call_id: str | None = ""
    name: str = ""
    namespace: str | None = None
    arguments: str | dict[str, Any] = ""
    input: str = ""
    output: str | list[OutputPart] | OutputPart | None = ""
    # of calls that `told_items` says in another way
    action: Any = None
    actions: list[dict[str, Any]] | None = None
    operation: dict[str, Any] | None = None
    server_label: str | None = None
    error: Any = None
    status: str | None = None
    tools: list[dict[str, Any]] | None = None
    code: str | None = None
    result: str | None = None

    @property
    def passed(self) -> str:
        """Returns what a function was called with, as JSON text."""
        return self.arguments if isinstance(self.arguments, str) else _json(self.arguments)

    @property
    def found(self) -> str:
        """Returns what a tool said, as text."""
        match self.output:
            case OutputPart() as part:
                return part.shown
            case list() as parts:
                return "".join(part.shown for part in parts)
        return self.output or ""


def told_items(items: Sequence[InputItem]) -> list[InputItem]:
    """Says calls of tools that are OpenAI's own, and what became of them, as calls of functions: the templates know no
    others. Leaves out those of which the model is told nothing.
    """
    return [told for item in items if item.type not in _OF_OPENAI for told in _told(item)]


def _told(item: InputItem) -> Iterator[InputItem]:
    call_id = item.call_id or item.id or ""
    if item.type in _BUILTINS:
        name = item.type.removesuffix("_call")
        yield InputItem("function_call", call_id=call_id, name=name, arguments=_arguments(item))
    elif item.type in _BUILTIN_OUTPUTS:
        found = item.found or item.result or (_json(item.tools) if item.tools is not None else item.status or "")
        yield InputItem("function_call_output", call_id=call_id, output=found)
    elif item.type == "mcp_call":
        call = InputItem("function_call", call_id=call_id, name=item.name, arguments=item.passed)
        call.namespace = item.server_label
        yield call
        error = item.error if isinstance(item.error, str) or item.error is None else _json(item.error)
        yield InputItem("function_call_output", call_id=call_id, output=item.found or error or item.status or "")
    else:
        yield item


def _arguments(item: InputItem) -> str:
    for name, said in (("actions", item.actions), ("code", item.code)):
        if said is not None:
            return _json({name: said})
    asked = item.action or item.operation
    return _json({k: v for k, v in asked.items() if v is not None}) if isinstance(asked, dict) else item.passed


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
