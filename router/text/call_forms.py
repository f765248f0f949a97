"""Tells how families of models write calls of tools: fields of response templates, chosen by their chat template."""

from collections.abc import Mapping
from typing import Any

_CALL: Mapping[str, Any] = {"type": "function", "function": "{content}"}
_NAMED_CALL: Mapping[str, Any] = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}

HERMES: Mapping[str, Any] = {  # Qwen 2.5 and 3, too
    "open_pattern": r"\s*<tool_call>",
    "close": "</tool_call>",
    "repeats": True,
    "content": "json",
    "transform": _CALL,
}
QWEN_XML: Mapping[str, Any] = {
    "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
    "close_pattern": r"</function>\s*</tool_call>",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"},
    "transform": _NAMED_CALL,
}
# Several follow one another, with `; ` or space between. Where an object ends and the next one begins, no call goes on:
# JSON has a comma there, and in its strings quotes are escaped.
LLAMA_3: Mapping[str, Any] = {
    "open_pattern": r"(?:<\|python_tag\|>)?\s*(?=\{\s*\"name\"\s*:)",
    "close_pattern": r"(?<=\})\s*;?\s*(?=\{\s*\"name\"\s*:)|<\|(?:eot|eom)_id\|>",
    "repeats": True,
    "content": "json",
    "transform": _CALL,
}
_MISTRAL: Mapping[str, Any] = {"open": "[TOOL_CALLS]", "close": "</s>", "content": "json", "transform": _CALL}
_MISTRAL_ARGS: Mapping[str, Any] = {
    "open_pattern": r"\s*\[TOOL_CALLS\](?P<name>[^\[\{]+)\[ARGS\]",
    "close_pattern": r"(?=\[TOOL_CALLS\])|</s>",
    "repeats": True,
    "content": "json",
    "transform": _NAMED_CALL,
}

_GRANITE: Mapping[str, Any] = {
    "open_pattern": r"\s*<\|tool_call\|>",
    "close": "<|end_of_text|>",
    "content": "json",
    "transform": _CALL,
}
_NEMOTRON: Mapping[str, Any] = {
    "open_pattern": r"\s*<TOOLCALL>",
    "close": "</TOOLCALL>",
    "repeats": True,
    "content": "json",
    "transform": _CALL,
}
_SEED: Mapping[str, Any] = {
    "open_pattern": r"\s*<seed:tool_call>\s*<function=(?P<name>[^>\n]+)>",
    "close_pattern": r"</function>\s*</seed:tool_call>",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>(?P<value>.*?)</parameter>"},
    "transform": _NAMED_CALL,
}
_GLM: Mapping[str, Any] = {
    "open_pattern": r"\s*<tool_call>\s*(?P<name>[^\s<]+)",
    "close": "</tool_call>",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<arg_key>\s*(?P<key>.*?)\s*</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"},
    "transform": _NAMED_CALL,
}
MINIMAX_END = r"\s*</minimax:tool_call>"
MINIMAX: Mapping[str, Any] = {  # one pair of outer marks around all calls
    "open_pattern": r"\s*(?:<minimax:tool_call>\s*)?<invoke name=\"(?P<name>[^\"\n]+)\">",
    "close": "</invoke>",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<parameter name=\"(?P<key>[^\"\n]+)\">(?P<value>.*?)</parameter>"},
    "transform": _NAMED_CALL,
}

_TOOLS_BY_MARK: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("<seed:tool_call>", _SEED),
    ("<TOOLCALL>", _NEMOTRON),
    ("<|tool_call|>", _GRANITE),
    ("<minimax:tool_call>", MINIMAX),
    ("<arg_key>", _GLM),
    ("<function=", QWEN_XML),
    ("<tool_call>", HERMES),
    ("[ARGS]", _MISTRAL_ARGS),
    ("[TOOL_CALLS]", _MISTRAL),
    ("<|start_header_id|>", LLAMA_3),
)


def calls_of(chat_template: str) -> Mapping[str, Any]:
    """Chooses Hermes' form where nothing in the chat template says another: that is how tools are described to such a
    model (tool_prompt.py).
    """
    return next((calls for mark, calls in _TOOLS_BY_MARK if mark in chat_template), HERMES)
