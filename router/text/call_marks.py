"""Tells how a model writes a call of a tool, where its way is known: what a mask can hold its calls to."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from router.text.call_forms import (
    DEEPSEEK,
    DEEPSEEK_FENCED,
    DEEPSEEK_ONE,
    DEEPSEEK_ONE_END,
    DEEPSEEK_SEP,
    HERMES,
    KIMI,
    LLAMA_3,
)
from router.text.reply_templates import TOOL_FIELD
from router.text.tagged_call_forms import DSML, DSML_CALL, DSML_CALL_END, GLM, MINIMAX, QWEN_XML


class CallMarks(msgspec.Struct, frozen=True):
    """A call is `before_name`, the name, `after_name`, the arguments in `style` (xgrammar's name of it), `end`.
    `trigger` is where the model has begun one. Where there are `separators`, all that may come after a call is
    one of them and a call, and one space at the end. Where there is `after_number`, a number and that are between
    `after_name` and the arguments.
    """

    trigger: str
    before_name: str
    after_name: str
    end: str
    style: str = "json"
    separators: tuple[str, ...] = ()
    after_number: str = ""


# Mistral's marks are special tokens, which no mask lets through.
_MARKS: Sequence[tuple[Mapping[str, Any], CallMarks]] = (
    (HERMES, CallMarks("<tool_call>", '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")),
    (QWEN_XML, CallMarks("<tool_call>", "<tool_call>\n<function=", ">\n", "\n</function>\n</tool_call>", "qwen_xml")),
    (DEEPSEEK, CallMarks(DEEPSEEK_ONE, DEEPSEEK_ONE, DEEPSEEK_SEP, DEEPSEEK_ONE_END)),
    (
        DEEPSEEK_FENCED,
        CallMarks(DEEPSEEK_ONE, f"{DEEPSEEK_ONE}function{DEEPSEEK_SEP}", "\n```json\n", f"\n```{DEEPSEEK_ONE_END}"),
    ),
    (GLM, CallMarks("<tool_call>", "<tool_call>", "", "</tool_call>", "glm_xml")),
    (MINIMAX, CallMarks('<invoke name="', '<invoke name="', '">\n', "</invoke>", "minimax_xml")),
    (DSML, CallMarks(DSML_CALL, DSML_CALL, '">\n', DSML_CALL_END, "deepseek_xml")),
    (
        KIMI,
        CallMarks(
            "<|tool_call_begin|>",
            "<|tool_call_begin|>functions.",
            ":",
            "<|tool_call_end|>",
            after_number="<|tool_call_argument_begin|>",
        ),
    ),
    (LLAMA_3, CallMarks('{"name":', '{"name": "', '", "parameters": ', "}", separators=("; ", ";", "\n", " "))),
)


def call_marks(template: Mapping[str, Any], special_tokens: Collection[str]) -> CallMarks | None:
    """Finds how the model calls by its response template. None: it is not known, or written with special tokens."""
    calls = template["fields"].get(TOOL_FIELD)
    found = next((marks for known, marks in _MARKS if calls == known), None)
    if found is None or any(
        token in found.before_name + found.after_name + found.after_number + found.end for token in special_tokens
    ):
        return None
    return found
