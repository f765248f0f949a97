"""Response templates, in transformers' format, for checkpoints that bring none: chosen by their chat template.

A response template says which parts of a reply are its answer, its reasoning and its tool calls; transformers' parser
does the rest.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from router.text.call_forms import calls_of, end_of_all
from router.text.cohere_template import COHERE, COHERE_MARK
from router.text.harmony_template import HARMONY, HARMONY_MARK
from router.text.kimi_k3_template import KIMI_K3_MARKS, KIMI_K3_TEMPLATE

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
    "<|im_assistant|>assistant<|im_middle|>",
    "<|assistant_start|>",
    "<start_of_turn>model\n",
)
# Behind all else: elsewhere an answer speaks of them, or has HTML in it.
_MARK = r"(?:<\|im_end\|>|<\|endoftext\|>|<\|eo[tm](?:_id)?\|>|<turn\|>|</s>|<\uff5cend▁of▁sentence\uff5c>)"
_END = rf"{_MARK}(?:\s*{_MARK}){{0,2}}\s*\Z"  # not of any number: the time to look for that grows with its square
_THOUGHTS = (  # the mark that opens them and that which closes them
    ("<|channel>thought\n", "<channel|>"),
    ("<mm:think>", "</mm:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<think>", "</think>"),
)
_WRAPPERS = (("<response>", "response"), ("<|extra_0|>", "answer"))  # by what else the chat template says


def template_for(chat_template: str, *, knows_tools: bool = True) -> dict[str, Any]:
    """Reads from the chat template how the model marks its reasoning and its calls. One that does not know tools has
    its model told of them, and of a way to call.
    """
    if HARMONY_MARK in chat_template:
        return dict(HARMONY)
    if COHERE_MARK in chat_template and knows_tools:
        return dict(COHERE)
    if all(mark in chat_template for mark in KIMI_K3_MARKS):
        return dict(KIMI_K3_TEMPLATE)
    fields: dict[str, Any] = {"content": {"close_pattern": rf"\s*(?:{_END})", "content": "text"}}
    # Hunyuan 3's has its marks formatted: '<think{}>'.format(HYTK)
    said = chat_template.replace("{}", ":opensource" if ":opensource" in chat_template else "")
    thoughts = next((marks for marks in _THOUGHTS if any(mark.strip() in said for mark in marks)), None)
    if thoughts is not None:
        fields["reasoning_content"] = {"open": thoughts[0], "close": thoughts[1], "content": "text"}
        _part_wrapper(fields, thoughts[1], chat_template)
    calls = calls_of(chat_template, knows_tools=knows_tools)
    fields[TOOL_FIELD] = dict(calls)
    end = end_of_all(calls)
    if end is not None:
        fields["content"]["close_pattern"] = rf"\s*(?:{end}|{_END})"
    return {"defaults": {"role": "assistant"}, "start_anchor": list(_ANCHORS), "fields": fields}


def _part_wrapper(fields: dict[str, Any], thoughts_end: str, chat_template: str) -> None:
    """Leaves out what some put around an answer behind their thoughts: ERNIE 4.5 and Hunyuan A13B. MiniMax M3 may end
    thoughts that it has not begun.
    """
    name = next((name for mark, name in _WRAPPERS if mark in chat_template and f"</{name}>" in chat_template), None)
    if name is not None:
        fields["content"]["close_pattern"] = rf"\s*(?:</{name}>\s*\Z|(?:</{name}>\s*)?{_END})"
        opened = rf"(?<=\A\s*|{thoughts_end}\s*)<(?={name}>)"
        fields["header"] = {"open_pattern": opened, "close": f"{name}>", "content": "text"}
    elif thoughts_end == "</mm:think>":
        fields["header"] = {"open_pattern": r"\A\s*</(?=mm:think>)", "close": "mm:think>", "content": "text"}


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
