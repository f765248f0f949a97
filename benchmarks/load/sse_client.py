"""An HTTP/1.1 client that does next to nothing, so that a measurement of a server does not measure its client,
and the streamed chats that it asks for.
"""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

_DONE = b"data: [DONE]\n\n"
_LAST_CHUNK = b"0\r\n\r\n"


class UnexpectedAnswer(RuntimeError):
    """The server did not send what was asked for; the message is what it sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTimes:
    """Of one streamed answer. `num_tokens` and `prompt_tokens` are what the server counted."""

    sent_s: float
    first_s: float
    done_s: float
    num_tokens: int
    prompt_tokens: int


class SseConnection(asyncio.Protocol):
    """One kept-alive connection, one request at a time; opened anew where the server has closed it meanwhile."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        # Not the loop's time: uvloop counts it in milliseconds.
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._first_s = 0.0
        self._complete: asyncio.Future[float] | None = None

    @classmethod
    async def open(cls, host: str, port: int) -> "SseConnection":
        _, protocol = await asyncio.get_running_loop().create_connection(lambda: cls(host, port), host, port)
        return protocol

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()

    async def stream(self, path: str, body: Mapping[str, Any]) -> StreamTimes:
        """Posts a request with `stream` and `include_usage` set.

        Raises:
            UnexpectedAnswer: it is not a complete stream with a usage at its end.
        """
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        sent_s, done_s = await self._exchange(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        if not self._received.startswith(b"HTTP/1.1 200") or _DONE not in self._received:
            raise UnexpectedAnswer(self._received.decode(errors="replace"))
        last_event = self._received.rsplit(b"data: ", 2)[1]
        usage = json.loads(last_event.split(b"\n\n", 1)[0])["usage"]
        return StreamTimes(
            sent_s=sent_s,
            first_s=self._first_s,
            done_s=done_s,
            num_tokens=usage["completion_tokens"],
            prompt_tokens=usage["prompt_tokens"],
        )

    async def get(self, path: str) -> float:
        """Seconds until a small document is there.

        Raises:
            UnexpectedAnswer: the status is not 200.
        """
        sent_s, done_s = await self._exchange(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        if not self._received.startswith(b"HTTP/1.1 200"):
            raise UnexpectedAnswer(self._received.decode(errors="replace"))
        return done_s - sent_s

    async def _exchange(self, request: bytes) -> tuple[float, float]:
        assert self._transport is not None
        assert self._complete is None, "one request at a time"
        if self._transport.is_closing():  # it was idle for too long
            await self._loop.create_connection(lambda: self, self._host, self._port)
        self._received.clear()
        self._first_s = 0.0
        self._complete = self._loop.create_future()
        sent_s = time.perf_counter()
        self._transport.write(request)
        try:
            return sent_s, await self._complete
        finally:
            self._complete = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        self._received += data
        if not self._first_s and b"data: " in data:
            self._first_s = now_s
        if self._complete is not None and not self._complete.done() and self._is_complete():
            self._complete.set_result(now_s)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._complete is not None and not self._complete.done():
            self._complete.set_exception(exc or ConnectionResetError("the server closed the connection"))

    def _is_complete(self) -> bool:
        if self._first_s or b"transfer-encoding: chunked" in self._received[:1024].lower():
            return self._received.endswith(_LAST_CHUNK)
        head, separator, body = bytes(self._received).partition(b"\r\n\r\n")
        if not separator:
            return False
        lengths = [
            int(v)
            for k, _, v in (line.partition(b":") for line in head.lower().split(b"\r\n"))
            if k == b"content-length"
        ]
        return len(body) >= (lengths[0] if lengths else 0)


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
