import asyncio
import contextlib

import msgspec

from pdmux_actor.serving.frames import PROTOCOL_VERSION, Delta, FrameSplitter, FromUnit, Hello, Ping, encode


class GatewayPeer:
    """The gateway's end of a frame stream, in its plainest form."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._splitter = FrameSplitter()
        self._frames: list = []
        self.pings: list[Ping] = []
        self.deltas: dict[int, list[Delta]] = {}

    @classmethod
    async def connect(cls, endpoint: str, token: str | None = "secret", version: int = PROTOCOL_VERSION):
        host, _, port = endpoint.rpartition(":")
        peer = cls(*await asyncio.open_connection(host, int(port)))
        if token is not None:
            peer.send(Hello(version=version, token=token))
        return peer

    def send(self, *messages) -> None:
        self.writer.write(b"".join(encode(message) for message in messages))

    async def until_ping(self, *, stalled: bool) -> None:
        while not (self.pings and self.pings[-1].stalled is stalled):
            assert await self.next(returns_pings=True) is not None, "the unit closed the connection"

    async def next(self, timeout_s: float = 60.0, *, returns_pings: bool = False):
        """The next frame that is no Ping; None at end-of-file."""
        async with asyncio.timeout(timeout_s):
            while True:
                while self._frames:
                    frame = self._frames.pop(0)
                    if isinstance(frame, Ping):
                        self.pings.append(frame)
                        if returns_pings:
                            return frame
                        continue
                    if isinstance(frame, Delta):
                        assert frame.sequence == len(self.deltas.setdefault(frame.stream, []))
                        self.deltas[frame.stream].append(frame)
                    return frame
                try:
                    data = await self.reader.read(65536)
                except ConnectionError:
                    return None
                if not data:
                    return None
                self._frames += [msgspec.msgpack.decode(body, type=FromUnit) for body in self._splitter.feed(data)]

    async def until_finished(self, *streams: int) -> None:
        while not all(stream in self.deltas and self.deltas[stream][-1].finish for stream in streams):
            assert await self.next() is not None, "the unit closed the connection"

    def text(self, stream: int) -> str:
        return "".join(delta.text for delta in self.deltas[stream])

    def token_ids(self, stream: int) -> list[int]:
        return [token_id for delta in self.deltas[stream] for token_id in delta.token_ids]

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()
