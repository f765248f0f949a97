"""Streamed chats of a set length, as clients of a gateway ask for them."""

from collections.abc import Iterator
from typing import Any

from load.sse_client import SseConnection

_PROMPT = "How many rooms does a request cross before it is answered? " * 2


def chat_body(model: str, prompt: str, output_tokens: int) -> dict[str, Any]:
    """Greedy, and no token ends it."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def ask_in_turn(connection: SseConnection, numbers: Iterator[int], *, model: str, output_tokens: int) -> None:
    """A chat for each number, which may be shared with others that ask beside this one."""
    for number in numbers:
        body = chat_body(model, f"{number} {_PROMPT}", output_tokens)
        times = await connection.stream("/v1/chat/completions", body)
        assert times.num_tokens == output_tokens, times
