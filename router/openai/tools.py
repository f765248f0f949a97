"""Tools as a chat request declares them, and what its choice among them means."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from pdmux_actor.messages import StructuredKind, StructuredOutput
from router.errors import InvalidRequest
from router.openai.request_part import RequestPart
from router.openai.schema_support import check_schema, moved
from router.openai.spelled_schema import spelled_out
from router.text.call_marks import CallMarks

MAX_TOOLS = 1024
_MAX_WHITESPACE = 32  # between two parts of a call's arguments
_ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object"}

ToolName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:/-]+$")]


class FunctionDefinition(RequestPart):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(RequestPart):
    """`cache_control` is as in a message's part."""

    type: Literal["function"]
    function: FunctionDefinition
    cache_control: dict[str, Any] | None = None


class FunctionName(RequestPart):
    name: ToolName


class NamedFunction(RequestPart):
    type: Literal["function"]
    function: FunctionName


class AllowedFunctions(RequestPart):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class AllowedFunctionsChoice(RequestPart):
    """Chooses among the tools that there are: the model is told of no others."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedFunctions


Tools = Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)]
Functions = Annotated[list[FunctionDefinition], Field(max_length=MAX_TOOLS, fail_fast=True)]
ToolChoice = (
    Literal["none", "auto", "required"] | Annotated[NamedFunction | AllowedFunctionsChoice, Field(discriminator="type")]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """`offered` are OpenAI's tool objects. A reply that `must_call` is nothing but calls: of `only`, where it is named.
    `is_legacy`: said as `functions`, and answered in that form. `strict` are the places, among `offered`, of tools
    whose calls follow their schemas also where none must be made; `places` are those of `offered` in the request.
    """

    offered: tuple[dict[str, Any], ...] = ()
    must_call: bool = False
    only: str | None = None
    max_calls: int | None = None
    is_legacy: bool = False
    strict: frozenset[int] = frozenset()
    places: tuple[int, ...] = ()

    def check_strict(self) -> None:
        """Raises InvalidRequest: the schema of a strict tool has what outputs cannot be held to."""
        for place in sorted(self.strict):
            check_schema(self.offered[place]["function"]["parameters"], self._schema_of(place), strict=True)

    def strict_calls(self, marks: CallMarks | None) -> StructuredOutput | None:
        """A structural tag of xgrammar: text in which calls of strict tools follow their schemas, and those of others
        are of tools that there are. None: no tool is strict, calls must be made anyhow, or cannot be told from text.
        """
        if not self.strict or self.must_call or marks is None:
            return None
        tags = [
            {
                "type": "tag",
                "begin": f"{marks.before_name}{tool['function']['name']}{marks.after_name}",
                "content": _arguments(
                    spelled_out(tool["function"]["parameters"]) if place in self.strict else _ANY_ARGUMENTS, marks
                ),
                "end": marks.end,
            }
            for place, tool in enumerate(self.offered)
        ]
        text: dict[str, Any] = {
            "type": "triggered_tags",
            "triggers": [marks.trigger],
            "tags": tags,
            "stop_after_first": bool(marks.separators) or self.max_calls == 1,
        }
        if marks.separators and self.max_calls != 1:
            between = {"type": "or", "elements": [{"type": "const_string", "value": s} for s in marks.separators]}
            one_more = {"type": "sequence", "elements": [between, {"type": "or", "elements": tags}]}
            space = {"type": "regex", "pattern": "[ \\n]?"}  # whoever began to separate may yet end
            text = {"type": "sequence", "elements": [text, {"type": "star", "content": one_more}, space]}
        document = msgspec.json.encode({"type": "structural_tag", "format": text}).decode()
        return StructuredOutput(
            kind=StructuredKind.STRUCTURAL_TAG, text=document, param="functions" if self.is_legacy else "tools"
        )

    def forced_output(self) -> StructuredOutput:
        """JSON, of a reply that must call: the arguments of the one tool, or a list of calls.

        Raises InvalidRequest: what a tool has as its schema is none.
        """
        schemas: dict[str, object] = {}
        for place, tool in enumerate(self.offered):
            function = tool["function"]
            if self.only in (None, function["name"]):
                check_schema(function["parameters"], self._schema_of(place), strict=False)
                schemas[function["name"]] = spelled_out(function["parameters"])
        schema = _calls(schemas, self.max_calls) if self.only is None else schemas[self.only]
        text = msgspec.json.encode(schema).decode()
        return StructuredOutput(
            kind=StructuredKind.JSON_SCHEMA, text=text, param="function_call" if self.is_legacy else "tool_choice"
        )

    def _schema_of(self, offered: int) -> str:
        place = self.places[offered]
        return f"functions[{place}].parameters" if self.is_legacy else f"tools[{place}].function.parameters"


def _arguments(schema: object, marks: CallMarks) -> dict[str, Any]:
    arguments = {
        "type": "json_schema",
        "json_schema": schema,
        "style": marks.style,
        "max_whitespace_cnt": _MAX_WHITESPACE,
    }
    if not marks.after_number:
        return arguments
    number = {"type": "regex", "pattern": "[0-9]{1,6}"}
    between = {"type": "const_string", "value": marks.after_number}
    return {"type": "sequence", "elements": [number, between, arguments]}


NO_TOOLS = ToolUse()


def tool_use(
    tools: list[FunctionTool], choice: ToolChoice | None, *, parallel: bool | None, is_legacy: bool = False
) -> ToolUse:
    """Raises:
    InvalidRequest: the choice is among tools that are not there, or two have one name.
    """
    where = ("functions", "function_call") if is_legacy else ("tools", "tool_choice")
    names = [tool.function.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise InvalidRequest(f"Two of {where[0]!r} are called {twice!r}; give each a name of its own.", param=where[0])
    if not tools and choice not in (None, "none", "auto"):
        raise InvalidRequest(f"{where[1]!r} asks for a call, and there are no {where[0]!r}.", param=where[1])
    only = choice.function.name if isinstance(choice, NamedFunction) else None
    places, chosen = list(range(len(tools))), names if only is None else [only]
    if isinstance(choice, AllowedFunctionsChoice):
        chosen = [tool.function.name for tool in choice.allowed_tools.tools]
        places, choice = [p for p in places if names[p] in chosen], choice.allowed_tools.mode
    foreign = next((name for name in chosen if name not in names), None)
    if foreign is not None:
        raise InvalidRequest(f"{where[1]!r} names {foreign!r}, which is not among {where[0]!r}.", param=where[1])
    if choice == "none" or not tools:
        return NO_TOOLS
    return ToolUse(
        offered=tuple(_plain(tools[p]) for p in places),
        must_call=choice == "required" or only is not None,
        only=only,
        max_calls=1 if is_legacy or parallel is False or only is not None else None,
        is_legacy=is_legacy,
        strict=frozenset(number for number, p in enumerate(places) if tools[p].function.strict),
        places=tuple(places),
    )


def _plain(tool: FunctionTool) -> dict[str, Any]:
    """Has the name first, and arguments that are an object: so models have learnt to read tools."""
    function = tool.function.model_dump(exclude_none=True, exclude={"strict"})
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return {"type": "function", "function": {**function, "parameters": parameters}}


def _calls(schemas: Mapping[str, object], max_calls: int | None) -> dict[str, Any]:
    """Makes the schema of a list of calls. Each tool's own lies whole in a place of its own, with all it refers to."""
    places = {name: f"#/$defs/{number}" for number, name in enumerate(schemas)}
    one = {"anyOf": [_call(name, {"$ref": place}) for name, place in places.items()]}
    definitions = {str(number): moved(schema, places[name]) for number, (name, schema) in enumerate(schemas.items())}
    most = {} if max_calls is None else {"maxItems": max_calls}
    return {"type": "array", "minItems": 1, **most, "items": one, "$defs": definitions}


def _call(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [name]}, "parameters": schema},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }
