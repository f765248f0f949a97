"""The response template of gpt-oss, whose replies are messages in channels (OpenAI's Harmony format).

Reasoning is in the channel `analysis`, the answer in `final`; a call of a tool names its recipient, in the channel
`commentary` or before it. What is in `commentary` and has none is answer, too.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

HARMONY_MARK = "<|channel|>"
HARMONY_EFFORTS = ("low", "medium", "high")  # its chat template says any to the model, which knows these
_START = r"(?:<\|start\|>assistant\s*)?"  # the first message of a reply is begun by the prompt
_RECIPIENT = r"to=(?:functions\.)?(?P<name>[^\s<]+)"
_KIND = r"\s*(?:<\|constrain\|>)?\s*(?:json)?\s*<\|message\|>"
_CHANNEL = r"<\|channel\|>(?:commentary|analysis)"

_MARKS = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|return|>", "<|call|>", "<|constrain|>")
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
            "open_pattern": r"(?:<\|start\|>assistant[^<]*|to=[^\s<]+\s*)?<\|channel\|>(?:final|commentary)",
            "close": "<|message|>",
            "repeats": True,
            "content": "text",
        },
        "content": {"close_pattern": r"<\|(?:end|return|call)\|>", "content": "text"},
    },
}


def before_answer(token_id: Callable[[str], int | None]) -> str:
    """Says what may come before an answer that has a form, as StructuredOutput.before: messages of reasoning, and the
    answer's own header. `token_id` knows the model's marks, which are tokens. Empty: it has others.
    """
    ids = {mark: token_id(mark) for mark in _MARKS}
    if None in ids.values():
        return ""

    def mark(name: str) -> dict[str, Any]:
        return {"type": "token", "token": ids[f"<|{name}|>"]}

    thought = [
        *(mark("channel"), _text("analysis"), mark("message")),
        {"type": "any_tokens", "exclude_tokens": list(ids.values())},
        *(mark("end"), mark("start"), _text("assistant")),
    ]
    constrained = {"type": "optional", "content": _sequence(_text(" "), mark("constrain"), _text("json"))}
    header = (mark("channel"), _text("final"), constrained, mark("message"))
    return msgspec.json.encode([{"type": "star", "content": _sequence(*thought)}, *header]).decode()


def _text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": elements}
