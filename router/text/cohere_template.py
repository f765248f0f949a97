"""The response template of Cohere's Command R7B and Command A, whose replies are parts between marks."""

from collections.abc import Mapping
from typing import Any

COHERE_MARK = "<|START_ACTION|>"
COHERE: Mapping[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|CHATBOT_TOKEN|>",
    "fields": {
        "reasoning_content": {"open": "<|START_THINKING|>", "close": "<|END_THINKING|>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"\s*<\|START_ACTION\|>",
            "close": "<|END_ACTION|>",
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        # Before an answer, and no part of it.
        "header": {
            "open_pattern": r"\s*<\|START_(?=RESPONSE|TEXT)",
            "close_pattern": r"(?:RESPONSE|TEXT)\|>",
            "content": "text",
        },
        "content": {
            "close_pattern": r"\s*(?:<\|END_(?:RESPONSE|TEXT)\|>|<\|END_OF_TURN_TOKEN\|>)",
            "content": "text",
        },
    },
}
