"""Response templates, in transformers' format, for checkpoints that bring none: chosen by their chat template.

A response template says which parts of a reply are its answer, its reasoning and its tool calls; transformers' parser
does the rest.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from router.text.harmony_template import HARMONY, HARMONY_MARK

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
TOOL_FIELD = "tool_calls"

_ANCHORS: Sequence[str] = (
    "<|im_start|>assistant\n",
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "<|assistant|>",
    "<\uff5cAssistant\uff5c>",
    "[/INST]",
    "<seed:bos>assistant\n",
    "]~b]ai\n",
)
_END = r"\s*(?:<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>|<\|eom_id\|>|</s>)"
_THOUGHTS = (("<seed:think>", "</seed:think>"), ("[THINK]", "[/THINK]"), ("<think>", "</think>"))
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
LLAMA_3: Mapping[str, Any] = {
    "open_pattern": r"(?:<\|python_tag\|>)?\s*(?=\{\s*\"name\"\s*:)",
    "close": ["<|eot_id|>", "<|eom_id|>"],
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
_MINIMAX_END = r"\s*</minimax:tool_call>"
_MINIMAX: Mapping[str, Any] = {  # one pair of outer marks around all calls
    "open_pattern": r"\s*(?:<minimax:tool_call>\s*)?<invoke name=\"(?P<name>[^\"\n]+)\">",
    "close": "</invoke>",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<parameter name=\"(?P<key>[^\"\n]+)\">(?P<value>.*?)</parameter>"},
    "transform": _NAMED_CALL,
}

_TOOLS_BY_MARK: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("<seed:tool_call>", _SEED),
    ("<minimax:tool_call>", _MINIMAX),
    ("<arg_key>", _GLM),
    ("<function=", QWEN_XML),
    ("<tool_call>", HERMES),
    ("[ARGS]", _MISTRAL_ARGS),
    ("[TOOL_CALLS]", _MISTRAL),
    ("<|start_header_id|>", LLAMA_3),
)


def template_for(chat_template: str) -> dict[str, Any]:
    """Tool calls in Hermes' form where nothing in the chat template says another: that is how tools are described to
    such a model (tool_prompt.py).
    """
    if HARMONY_MARK in chat_template:
        return dict(HARMONY)
    fields: dict[str, Any] = {"content": {"close_pattern": _END, "content": "text"}}
    thoughts = next((marks for marks in _THOUGHTS if any(mark in chat_template for mark in marks)), None)
    if thoughts is not None:
        fields["reasoning_content"] = {"open": thoughts[0], "close": thoughts[1], "content": "text"}
    calls = next((calls for mark, calls in _TOOLS_BY_MARK if mark in chat_template), HERMES)
    fields[TOOL_FIELD] = dict(calls)
    if calls is _MINIMAX:
        fields["content"]["close_pattern"] = f"{_END}|{_MINIMAX_END}"
    return {"defaults": {"role": "assistant"}, "start_anchor": list(_ANCHORS), "fields": fields}


def without(template: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The template without some of its fields: their marks are text like any other."""
    fields = {name: value for name, value in template["fields"].items() if name not in names}
    return {**template, "fields": fields}


def separates(template: Mapping[str, Any]) -> bool:
    """Returns whether it finds anything but the answer."""
    return any(name in (TOOL_FIELD, *REASONING_FIELDS) for name in template["fields"])


def forced_call(name: str | None) -> dict[str, Any]:
    """Builds the template of a reply that is JSON throughout: the arguments of tool `name`, or, with None, a list of
    calls.
    """
    call: dict[str, Any] = {"content": "json"}
    if name is None:
        call |= {
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{parameters}"}},
            "transform_each": True,
        }
    else:
        call["transform"] = {"type": "function", "function": {"name": name, "arguments": "{content}"}}
    return {"start_anchor": list(_ANCHORS), "fields": {TOOL_FIELD: call}}


def needs_special_tokens(template: Mapping[str, Any], special_tokens: Collection[str]) -> bool:
    """Returns whether marks of its parts are special tokens, which units leave out of the text unless they are
    told to.
    """
    marks = ""
    for name, field in template["fields"].items():
        if name == "content":
            continue
        for key in ("open", "open_pattern", "close", "close_pattern", "content_args"):
            marks += str(field.get(key, "")).replace("\\", "")
    return any(token in marks for token in special_tokens)
