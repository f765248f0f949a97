"""The response template of Kimi K3, whose replies are parts between marks: thoughts, the answer, calls."""

from collections.abc import Mapping
from typing import Any

from router.text.tagged_call_forms import KIMI_K3

KIMI_K3_MARKS = ("<|open|>", "<|sep|>", "<|close|>")
KIMI_K3_TEMPLATE: Mapping[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": '<|open|>message role="assistant"<|sep|>',
    "fields": {
        "reasoning_content": {"open": "<|open|>think<|sep|>", "close": "<|close|>think<|sep|>", "content": "text"},
        "tool_calls": dict(KIMI_K3),
        # Before an answer, and no part of it.
        "header": {
            "open_pattern": r"\s*<\|open\|>(?=response)",
            "close_pattern": r"response<\|sep\|>",
            "content": "text",
        },
        "content": {
            "close_pattern": r"\s*(?:<\|close\|>(?:response|tools|message)<\|sep\|>|<\|end_of_msg\|>)",
            "content": "text",
        },
    },
}
