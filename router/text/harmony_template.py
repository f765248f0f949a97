"""The response template of gpt-oss, whose replies are messages in channels (OpenAI's Harmony format).

Reasoning is in the channel `analysis`, the answer in `final`; a call of a tool names its recipient, in the channel
`commentary` or before it. What is in `commentary` and has none is answer, too.
"""

from collections.abc import Mapping
from typing import Any

HARMONY_MARK = "<|channel|>"
_START = r"(?:<\|start\|>assistant)?\s*"  # the first message of a reply is begun by the prompt
_RECIPIENT = r"to=(?:functions\.)?(?P<name>[^\s<]+)"
_KIND = r"\s*(?:<\|constrain\|>)?\s*(?:json)?\s*<\|message\|>"
_CHANNEL = r"<\|channel\|>(?:commentary|analysis)"

HARMONY: Mapping[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|start|>assistant",
    "fields": {
        "reasoning_content": {
            "open_pattern": _START + r"<\|channel\|>analysis\s*<\|message\|>",
            "close": "<|end|>",
            "content": "text",
        },
        "tool_calls": {
            "open_pattern": f"{_START}(?:{_CHANNEL}\\s+{_RECIPIENT}{_KIND}|{_RECIPIENT}\\s*{_CHANNEL}{_KIND})",
            "close": ["<|call|>", "<|end|>"],
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        # Before an answer, and no part of it.
        "header": {
            "open_pattern": r"(?:<\|start\|>assistant[^<]*|\s*to=[^\s<]+\s*)?<\|channel\|>(?:final|commentary)",
            "close": "<|message|>",
            "repeats": True,
            "content": "text",
        },
        "content": {"close_pattern": r"<\|(?:end|return|call)\|>", "content": "text"},
    },
}
