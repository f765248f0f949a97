"""Tells how families of models write calls of tools: fields of response templates, chosen by their chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

_CALLS, DEEPSEEK_ONE, DEEPSEEK_SEP, DEEPSEEK_ONE_END, _CALLS_END = (  # DeepSeek's, whose bars have full width
    f"<\uff5ctool▁{word}\uff5c>" for word in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")
)
_CALL: Mapping[str, Any] = {"type": "function", "function": "{content}"}
_NAMED_CALL: Mapping[str, Any] = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}

HERMES: Mapping[str, Any] = {  # Qwen 2.5 and 3, too
    "open_pattern": r"\s*<tool_call>",
    "close": "</tool_call>",
    "repeats": True,
    "content": "json",
    "transform": _CALL,
}
# Qwen3-Coder often leaves out <tool_call>, above all after a text. Then what follows tells a call from talk of one.
QWEN_XML: Mapping[str, Any] = {
    "open_pattern": r"<tool_call>\s*<function=(?P<name>[^>\n]+)>"
    r"|<function=(?P<name>[^>\n]+)>(?=\s*(?:<parameter=|</function>))",
    "close_pattern": r"</function>\s*(?:</tool_call>|(?=<function=[^>\n]+>\s*(?:<parameter=|</function>)))",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"},
    "transform": _NAMED_CALL,
}
# Several follow one another, with `; ` or space between. Where an object ends and the next one begins, no call goes on:
# JSON has a comma there, and in its strings quotes are escaped. With nothing between, a call would end where it begins.
# An object with a name and without parameters after it is somebody's data, unless it has the mark.
LLAMA_3: Mapping[str, Any] = {
    "open_pattern": r"<\|python_tag\|>\s*(?=\{\s*\"name\"\s*:)"
    r"|(?=\{\s*\"name\"\s*:\s*\"(?:[^\"\\]|\\.)*\"\s*,\s*\"(?:parameters|arguments)\"\s*:)",
    "close_pattern": r"(?<=\})(?:\s*;\s*|\s+)(?=\{\s*\"name\"\s*:)|<\|(?:eot|eom)_id\|>",
    "repeats": True,
    "content": "json",
    "transform": _CALL,
}
_MISTRAL: Mapping[str, Any] = {
    "open": "[TOOL_CALLS]",
    "close_pattern": r"</s>\s*\Z",
    "content": "json",
    "transform": _CALL,
}
_MISTRAL_ARGS: Mapping[str, Any] = {
    "open_pattern": r"\s*\[TOOL_CALLS\](?P<name>[^\[\{]+)(?:\[CALL_ID\][^\[\{]*)?\[ARGS\]",
    "close_pattern": r"(?=\[TOOL_CALLS\])|</s>\s*\Z",
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
_LISTED: Mapping[str, Any] = {  # Jamba, Hunyuan A13B
    "open_pattern": r"\s*<tool_calls>",
    "close": "</tool_calls>",
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
DEEPSEEK: Mapping[str, Any] = {  # since V3.1
    "open_pattern": rf"(?:{_CALLS}\s*)?{DEEPSEEK_ONE}\s*(?P<name>[^\s<]+)\s*{DEEPSEEK_SEP}",
    "close": DEEPSEEK_ONE_END,
    "repeats": True,
    "content": "json",
    "transform": _NAMED_CALL,
}
DEEPSEEK_FENCED: Mapping[str, Any] = {
    "open_pattern": rf"(?:{_CALLS}\s*)?{DEEPSEEK_ONE}\s*function{DEEPSEEK_SEP}"
    r"(?P<name>[^\s<]+)\s*```json\s",
    "close_pattern": rf"\s*```\s*{DEEPSEEK_ONE_END}",
    "repeats": True,
    "content": "json",
    "transform": _NAMED_CALL,
}
KIMI: Mapping[str, Any] = {
    "open_pattern": r"(?:<\|tool_calls_section_begin\|>\s*)?<\|tool_call_begin\|>\s*(?:functions\.)?"
    r"(?P<name>[^\s<:]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>",
    "close": "<|tool_call_end|>",
    "repeats": True,
    "content": "json",
    "transform": _NAMED_CALL,
}
_MINIMAX: Mapping[str, Any] = {
    "open_pattern": r"(?:<minimax:tool_call>\s*)?<invoke name=\"(?P<name>[^\"\n]+)\">",
    "close": "</invoke>",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<parameter name=\"(?P<key>[^\"\n]+)\">(?P<value>.*?)</parameter>"},
    "transform": _NAMED_CALL,
}
# Apertus writes `[{"NAME": ARGUMENTS}, ...]`: https://github.com/swiss-ai/apertus_format, docs/format.md
APERTUS: Mapping[str, Any] = {
    "open_pattern": r"\s*<\|tools_prefix\|>",
    "close": "<|tools_suffix|>",
    "repeats": True,
    "content": "json",
    "transform": {"type": "function", "function": {"by_name": "{content}"}},
}
# Keys have no quotes, texts stand between two `<escape>`: https://ai.google.dev/gemma/docs/functiongemma
_FUNCTION_GEMMA: Mapping[str, Any] = {
    "open_pattern": r"\s*<start_function_call>\s*call:(?P<name>[^\s\{<]+)(?=\{)",
    "close": "<end_function_call>",
    "repeats": True,
    "content": "json",
    "content_args": {"unquoted_keys": True, "string_delims": [["<escape>", "<escape>"]]},
    "transform": _NAMED_CALL,
}

# By what a chat template says, all of it: the first that fits.
_TOOLS_BY_MARKS: Sequence[tuple[tuple[str, ...], Mapping[str, Any]]] = (
    ((DEEPSEEK_ONE, "```json"), DEEPSEEK_FENCED),
    ((DEEPSEEK_ONE,), DEEPSEEK),
    (("<|tool_call_begin|>",), KIMI),
    (("<|tools_prefix|>",), APERTUS),
    (("<start_function_call>",), _FUNCTION_GEMMA),
    (("<seed:tool_call>",), _SEED),
    (("<TOOLCALL>",), _NEMOTRON),
    (("<|tool_call|>",), _GRANITE),
    (("<minimax:tool_call>",), _MINIMAX),
    (("<arg_key>",), _GLM),
    (("<function=",), QWEN_XML),
    (("<tool_call>",), HERMES),
    (("<tool_calls>",), _LISTED),
    (("[ARGS]",), _MISTRAL_ARGS),
    (("[TOOL_CALLS]",), _MISTRAL),
    (("<|start_header_id|>",), LLAMA_3),
)
# Of forms with a pair of outer marks around all calls the second one. The first belongs to the first call.
_ENDS: Sequence[tuple[Mapping[str, Any], str]] = (
    (DEEPSEEK, _CALLS_END),
    (DEEPSEEK_FENCED, _CALLS_END),
    (KIMI, r"<\|tool_calls_section_end\|>"),
    (_MINIMAX, "</minimax:tool_call>"),
    (_FUNCTION_GEMMA, "<start_function_response>"),
)


def calls_of(chat_template: str, *, knows_tools: bool = True) -> Mapping[str, Any]:
    """Chooses Hermes' form where nothing in the chat template says another, or where it knows no tools: that is how
    tools are described to such a model (tool_prompt.py).
    """
    if not knows_tools:
        return HERMES
    found = (calls for marks, calls in _TOOLS_BY_MARKS if all(mark in chat_template for mark in marks))
    return next(found, HERMES)


def end_of_all(calls: Mapping[str, Any]) -> str | None:
    """Returns a pattern of what follows the last call; None: nothing does."""
    return next((end for form, end in _ENDS if form == calls), None)
