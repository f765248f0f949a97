"""Renders chat templates as transformers does, without it: jinja2's sandbox, with the names that templates expect."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, ext, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from router.text.template_efforts import named_efforts

# The first is what templates read; a message has its reasoning under one of them.
_REASONING = ("reasoning_content", "thinking", "reasoning")
_CONTINUES = "CONTINUE_FINAL_MESSAGE_TAG "  # marks the end of the last message; templates may strip the space


class ChatTemplate:
    """`templates`: one, or several by name, of which `default` is used, and `tool_use` where there are tools.

    Raises:
        ValueError: there are several, and no default.
        jinja2.TemplateError: it is no template.
    """

    def __init__(self, templates: str | Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        """`special_tokens` by the names that templates know: `bos_token`."""
        several = {"default": templates} if isinstance(templates, str) else templates
        if "default" not in several:
            raise ValueError(
                "This model has multiple chat templates with no default specified! Available template names are "
                f"{sorted(several)}."
            )
        self._sources = {"default": several["default"], "tool_use": several.get("tool_use", several["default"])}
        self._environment = _environment()
        self._compiled = {name: self._environment.from_string(text) for name, text in self._sources.items()}
        self._special_tokens = special_tokens
        parsed = self._environment.parse(several["default"])
        self.efforts = named_efforts(parsed)
        read = meta.find_undeclared_variables(parsed)
        # What a request may set of what it reads, and what it is given anyway.
        self.variables = frozenset(read - set(self._environment.globals) - set(special_tokens))
        self.knows_tools = "tools" in self.variables or "tool_use" in several

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        arguments: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> str:
        """Raises ValueError, jinja2.TemplateError, and whatever a template does to its arguments."""
        if continue_final_message and add_generation_prompt:
            raise ValueError(
                "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when "
                "you want the model to continue the final message, and add_generation_prompt when you want to add a "
                "header that will prompt it to start a new assistant message instead."
            )
        name = "tool_use" if tools else "default"
        told = [_told(message) for message in messages]
        final = self._mark_end(told[-1], name) if continue_final_message else None
        rendered = self._compiled[name].render(
            **{"documents": None, **self._special_tokens, **arguments},
            messages=told,
            tools=list(tools) or None,
            add_generation_prompt=add_generation_prompt,
        )
        return rendered if final is None else _until_end(rendered, final)

    def _mark_end(self, message: dict[str, Any], name: str) -> str:
        """Returns what the message says, whose end is marked from now on."""
        final: str = message["content"]
        if "content" not in self._sources[name]:
            raise ValueError(
                'continue_final_message is set to "content" but this is not an accepted field in the chat_template'
            )
        message["content"] = final + _CONTINUES
        return final


def _told(message: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: value for name, value in message.items() if value is not None}
    reasoning = next((told[name] for name in _REASONING if name in told), None)
    return told if reasoning is None else {"thinking": reasoning, **told, "reasoning_content": reasoning}


def _until_end(rendered: str, final: str) -> str:
    """Leaves out what the template says after the last message, and its mark."""
    mark = _CONTINUES.strip()
    if final.strip() not in rendered or mark not in rendered:
        raise ValueError(
            "continue_final_message is set but the final message does not appear in the chat after applying the chat "
            "template! This can happen if the chat template deletes portions of the final message. Please verify the "
            "chat template and final message in your chat to ensure they are compatible."
        )
    end = rendered.rindex(mark)
    is_stripped = rendered[end : end + len(_CONTINUES)] != _CONTINUES
    return rendered[:end].rstrip() if is_stripped else rendered[:end]


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_AssistantParts, ext.loopcontrols]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = _strftime_now
    made.globals["dict"] = _Dict()
    made.globals["namespace"] = _Namespace
    return made


class _AssistantParts(ext.Extension):
    """`{% generation %}` says to trainers which parts are the assistant's; here it is as if it were not there."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller: Macro) -> str:
        said: str = caller()
        return said


class _Dict:
    """Makes dicts, and has none of their class's attributes."""

    def __call__(self, *entries: Iterable[tuple[str, object]], **more: object) -> dict[str, object]:
        return dict(*entries, **more)

    def fromkeys(self, keys: Iterable[str], value: object = None) -> dict[str, object]:
        return dict.fromkeys(keys, value)


class _Namespace(Namespace):
    """jinja2's, for names that are not Python's own."""

    def __init__(self, entries: Iterable[tuple[str, object]] = (), /, **more: object) -> None:
        attributes = dict(entries, **more)
        for name in attributes:
            _refuse_private(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: object) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(
            "Chat templates cannot store underscore-prefixed attributes on a namespace, "
            f"but got {name!r}. Please rename the attribute."
        )


def _tojson(
    x: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own escapes HTML."""
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
