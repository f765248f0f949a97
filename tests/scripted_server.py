"""A completion server on a real socket whose behaviour is the name of the requested model."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ScriptedServer:
    """`open_now` counts requests in progress; `bodies` holds what was asked, in order of arrival."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[dict] = []
        self.headers: list[str] = []
        self.open_now = 0
        self._opened = asyncio.Condition()
        self.release = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["ScriptedServer"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**22)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self
            self.release.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length")
        )
        body = json.loads(await reader.readexactly(length))
        self.bodies.append(body)
        self.headers.append(head)
        self.open_now += 1
        async with self._opened:
            self._opened.notify_all()
        try:
            await getattr(self, "answer_" + body["model"])(body, writer)
        finally:
            self.open_now -= 1
            writer.close()

    async def until_open(self, count: int) -> None:
        async with self._opened:
            await self._opened.wait_for(lambda: self.open_now >= count)

    # One method per behaviour.

    async def answer_ok(self, body: dict, writer: asyncio.StreamWriter) -> None:
        self._begin(writer)
        for i in range(body["max_tokens"]):
            self._send(writer, text="t", finish="length" if i == body["max_tokens"] - 1 else None)
        self._usage(writer, body["max_tokens"])
        self._raw(writer, b"data: [DONE]\n\n")
        self._end(writer)

    async def answer_paced(self, body: dict, writer: asyncio.StreamWriter) -> None:
        self._begin(writer)
        for i in range(body["max_tokens"]):
            await asyncio.sleep(0.05)
            self._send(writer, text="t", finish="length" if i == body["max_tokens"] - 1 else None)
        self._end(writer)

    async def answer_held(self, body: dict, writer: asyncio.StreamWriter) -> None:
        await asyncio.wait_for(self.release.wait(), 20)
        await self.answer_ok(body, writer)

    async def answer_merged(self, body: dict, writer: asyncio.StreamWriter) -> None:
        """Four tokens a chunk, half a byte sequence of them per write, comments in between, CRLF."""
        self._begin(writer)
        payload = b": keep-alive\r\n\r\n"
        for i in range(0, body["max_tokens"], 4):
            last = i + 4 >= body["max_tokens"]
            payload += b"data: " + json.dumps(_chunk("\u00e9" * 4, "length" if last else None)).encode() + b"\r\n\r\n"
        payload += b"data: " + json.dumps({"choices": [], "usage": {"completion_tokens": body["max_tokens"]}}).encode()
        payload += b"\r\n\r\ndata: [DONE]\r\n\r\n"
        for start in range(0, len(payload), 7):
            self._raw(writer, payload[start : start + 7])
        self._end(writer)

    async def answer_textless(self, body: dict, writer: asyncio.StreamWriter) -> None:
        self._begin(writer)
        self._send(writer, text="", finish="stop")
        self._usage(writer, 1)
        self._end(writer)

    async def answer_busy(self, body: dict, writer: asyncio.StreamWriter) -> None:
        self._refuse(writer, "429 Too Many Requests", {"error": {"message": "queue full", "type": "rate_limit"}})

    async def answer_unready(self, body: dict, writer: asyncio.StreamWriter) -> None:
        self._refuse(writer, "503 Service Unavailable", "no unit")

    async def answer_unknown(self, body: dict, writer: asyncio.StreamWriter) -> None:
        self._refuse(writer, "404 Not Found", {"error": {"message": "no such model"}})

    async def answer_broken(self, body: dict, writer: asyncio.StreamWriter) -> None:
        self._refuse(writer, "500 Internal Server Error", {"error": "boom"})

    async def answer_cut(self, body: dict, writer: asyncio.StreamWriter) -> None:
        self._begin(writer)
        self._send(writer, text="t", finish=None)
        self._send(writer, text="t", finish=None)
        await writer.drain()

    async def answer_reset(self, body: dict, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async def answer_unfinished(self, body: dict, writer: asyncio.StreamWriter) -> None:
        self._begin(writer)
        self._send(writer, text="t", finish=None)
        self._raw(writer, b"data: [DONE]\n\n")
        self._end(writer)

    async def answer_hung(self, body: dict, writer: asyncio.StreamWriter) -> None:
        self._begin(writer)
        self._send(writer, text="t", finish=None)
        await writer.drain()
        await asyncio.wait_for(self.release.wait(), 20)

    async def answer_silent(self, body: dict, writer: asyncio.StreamWriter) -> None:
        await asyncio.wait_for(self.release.wait(), 20)

    async def answer_finished_then_cut(self, body: dict, writer: asyncio.StreamWriter) -> None:
        self._begin(writer)
        self._send(writer, text="t", finish="length")
        await writer.drain()

    async def answer_error_chunk(self, body: dict, writer: asyncio.StreamWriter) -> None:
        self._begin(writer)
        self._send(writer, text="t", finish=None)
        self._raw(writer, b'data: {"error": {"message": "unit lost", "type": "server_error"}}\n\ndata: [DONE]\n\n')
        self._end(writer)

    async def answer_error_finish(self, body: dict, writer: asyncio.StreamWriter) -> None:
        self._begin(writer)
        self._send(writer, text="", finish="error")
        self._end(writer)

    async def answer_garbage(self, body: dict, writer: asyncio.StreamWriter) -> None:
        self._begin(writer)
        self._raw(writer, b"data: {not json}\n\n")
        self._end(writer)

    def _begin(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    def _send(self, writer: asyncio.StreamWriter, *, text: str, finish: str | None) -> None:
        self._raw(writer, b"data: " + json.dumps(_chunk(text, finish)).encode() + b"\n\n")

    def _usage(self, writer: asyncio.StreamWriter, tokens: int) -> None:
        usage = {"choices": [], "usage": {"completion_tokens": tokens, "prompt_tokens": 1, "total_tokens": tokens + 1}}
        self._raw(writer, b"data: " + json.dumps(usage).encode() + b"\n\n")

    def _raw(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _end(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"0\r\n\r\n")

    def _refuse(self, writer: asyncio.StreamWriter, status: str, body: object) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)


def _chunk(text: str, finish: str | None) -> dict:
    return {"id": "c", "object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": finish}]}
