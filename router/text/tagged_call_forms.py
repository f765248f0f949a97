"""Tells how families of models write calls whose values stand between marks: fields of response templates."""

from collections.abc import Mapping
from typing import Any

NAMED_CALL: Mapping[str, Any] = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}

# Qwen3-Coder often leaves out <tool_call>, above all after a text. Then what follows tells a call from talk of one.
QWEN_XML: Mapping[str, Any] = {
    "open_pattern": r"<tool_call>\s*<function=(?P<name>[^>\n]+)>"
    r"|<function=(?P<name>[^>\n]+)>(?=\s*(?:<parameter=|</function>))",
    "close_pattern": r"</function>\s*(?:</tool_call>|(?=<function=[^>\n]+>\s*(?:<parameter=|</function>)))",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"},
    "transform": NAMED_CALL,
}
SEED: Mapping[str, Any] = {
    "open_pattern": r"\s*<seed:tool_call>\s*<function=(?P<name>[^>\n]+)>",
    "close_pattern": r"</function>\s*</seed:tool_call>",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>(?P<value>.*?)</parameter>"},
    "transform": NAMED_CALL,
}
GLM: Mapping[str, Any] = {
    "open_pattern": r"\s*<tool_call>\s*(?P<name>[^\s<]+)",
    "close": "</tool_call>",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<arg_key>\s*(?P<key>.*?)\s*</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"},
    "transform": NAMED_CALL,
}
MINIMAX: Mapping[str, Any] = {
    "open_pattern": r"(?:<minimax:tool_call>\s*)?<invoke name=\"(?P<name>[^\"\n]+)\">",
    "close": "</invoke>",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<parameter name=\"(?P<key>[^\"\n]+)\">(?P<value>.*?)</parameter>"},
    "transform": NAMED_CALL,
}

# Keys come with the attributes behind them, which say of a value whether it is a text (read_calls.py).
_MARKED_CALL: Mapping[str, Any] = {"type": "function", "function": {"name": "{name}", "marked": "{content}"}}
# DeepSeek V3.2's; V4 has `tool_calls` around calls, V4.1 ` calls`, and a space in ` invoke` and ` parameter`:
# the structural tags of xgrammar 0.2.8; llama.cpp, models/templates/DeepSeek-V3.2.jinja.
_DSML = "\uff5cDSML\uff5c"
DSML_CALL, DSML_CALL_END = f'<{_DSML}invoke name="', f"</{_DSML}invoke>"
_DSML_CALLS = rf"{_DSML} ?(?:function_calls|tool_calls|calls)>"
DSML_END = f"</{_DSML_CALLS}"
DSML: Mapping[str, Any] = {
    "open_pattern": rf"(?:<{_DSML_CALLS}\s*)?<{_DSML} ?invoke name=\"(?P<name>[^\"\n]+)\">",
    "close_pattern": rf"</{_DSML} ?invoke>",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {
        "tag_pattern": rf"<{_DSML} ?parameter name=\"(?P<key>[^\"\n]+\"[^>\n]*)>(?P<value>.*?)</{_DSML} ?parameter>"
    },
    "transform": _MARKED_CALL,
}


# sgl-project/sglang, function_call/kimik3_format; llama.cpp, models/templates/Kimi-K3.jinja.
KIMI_K3: Mapping[str, Any] = {
    "open_pattern": r"\s*(?:<\|open\|>tools<\|sep\|>\s*)?<\|open\|>call tool=\"(?P<name>[^\"\n]+)\"[^<\n]*<\|sep\|>",
    "close": "<|close|>call<|sep|>",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {
        "tag_pattern": r"<\|open\|>argument key=\"(?P<key>[^\"\n]+\"[^<\n]*)<\|sep\|>(?P<value>.*?)"
        r"<\|close\|>argument<\|sep\|>"
    },
    "transform": _MARKED_CALL,
}

# Arguments are tags of their own, objects have tags within: sgl-project/sglang, function_call/minimax_m3.
_M3 = r"\]<\]minimax\[>\[\s*"
MINIMAX_M3_END = f"{_M3}</tool_call>"
MINIMAX_M3_TAG = rf"{_M3}<(?P<key>[^<>/\s]+)>(?P<value>.*?){_M3}</(?P=key)>"
MINIMAX_M3: Mapping[str, Any] = {
    "open_pattern": rf"\s*(?:{_M3}<tool_call>\s*)?{_M3}<invoke name=\"(?P<name>[^\"\n]+)\">",
    "close_pattern": f"{_M3}</invoke>",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {"tag_pattern": MINIMAX_M3_TAG},
    "transform": {"type": "function", "function": {"name": "{name}", "nested": "{content}"}},
}

# sgl-project/sglang, function_call/step3_detector.
_STEP_CALLS, _STEP_CALL, _STEP_SEP, _STEP_CALL_END, STEP_3_END = (
    f"<\uff5c{word}\uff5c>"
    for word in ("tool_calls_begin", "tool_call_begin", "tool_sep", "tool_call_end", "tool_calls_end")
)
STEP_3: Mapping[str, Any] = {
    "open_pattern": rf"\s*(?:{_STEP_CALLS}\s*)?{_STEP_CALL}\s*function\s*{_STEP_SEP}\s*"
    r"<steptml:invoke name=\"(?P<name>[^\"\n]+)\">",
    "close_pattern": rf"</steptml:invoke>\s*{_STEP_CALL_END}",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {
        "tag_pattern": r"<steptml:parameter name=\"(?P<key>[^\"\n]+)\">(?P<value>.*?)</steptml:parameter>"
    },
    "transform": NAMED_CALL,
}
# vllm-project/vllm, tool_parsers/minicpm5xml_tool_parser. What follows tells a call from talk of one.
MINICPM_5: Mapping[str, Any] = {
    "open_pattern": r"\s*<function name=\"(?P<name>[^\"\n]+)\">(?=\s*(?:<param name=|</function>))",
    "close": "</function>",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {
        "tag_pattern": r"<param name=\"(?P<key>[^\"\n]+)\">(?:<!\[CDATA\[)?(?P<value>.*?)(?:\]\]>)?</param>"
    },
    "transform": NAMED_CALL,
}


def _hy_mark(name: str) -> str:
    return f"(?:<{name}:opensource>|<{name}>)"  # whole, for marks that are special tokens are looked for in patterns


# Hunyuan 3's, whose marks end in `:opensource` in the published checkpoints, and did not in its preview:
# sgl-project/sglang, function_call/hunyuan_detector.
HUNYUAN_3_END = _hy_mark("/tool_calls")
HUNYUAN_3: Mapping[str, Any] = {
    "open_pattern": rf"(?:{_hy_mark('tool_calls')}\s*)?"
    rf"{_hy_mark('tool_call')}\s*(?P<name>[^\s<]+)\s*{_hy_mark('tool_sep')}",
    "close_pattern": _hy_mark("/tool_call"),
    "repeats": True,
    "content": "xml-inline",
    "content_args": {
        "tag_pattern": rf"{_hy_mark('arg_key')}\s*(?P<key>.*?)\s*{_hy_mark('/arg_key')}\s*"
        rf"{_hy_mark('arg_value')}(?P<value>.*?){_hy_mark('/arg_value')}"
    },
    "transform": NAMED_CALL,
}
