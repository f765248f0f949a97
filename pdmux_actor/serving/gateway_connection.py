"""A gateway's connection, at the unit's end: framing, authentication, heartbeats, and which streams it opened."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, cast

import msgspec

from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.connection_heartbeat import PEER_LOST_S, ConnectionHeartbeat, bound_silence
from pdmux_actor.serving.frames import (
    HEARTBEAT_S,
    HELLO_DEADLINE_S,
    MAX_FRAME_BYTES,
    MAX_HELLO_BYTES,
    PROTOCOL_VERSION,
    SILENCE_S,
    Cancel,
    Credit,
    Delta,
    FetchKv,
    FrameSplitter,
    FrameTooLarge,
    FromUnit,
    Generate,
    Hello,
    KvFetched,
    Ping,
    ProtocolViolation,
    Refused,
    ToUnit,
    Welcome,
    check_hello,
    encode,
)
from pdmux_actor.serving.token_stream import TokenStream

logger = logging.getLogger(__name__)

MAX_STREAMS = 4096
_DECODER: msgspec.msgpack.Decoder[ToUnit] = msgspec.msgpack.Decoder(ToUnit)


class StreamHandler(Protocol):
    """Serves the streams."""

    def open(self, message: Generate, send: Callable[[Delta], None]) -> TokenStream | None:
        """None when the stream's only Delta, a failure, is sent already."""
        ...

    def cancel(self, stream: TokenStream) -> None:
        """Nobody waits for the stream any more: it sends nothing from now on, its sequence is freed."""
        ...

    def give_kv(self, asked: FetchKv, send: Callable[[KvFetched], None]) -> None:
        """Another unit goes on with a prompt that was computed here. `send` may be called when the peer is gone."""
        ...

    def is_stalled(self) -> bool:
        """Nothing comes of the streams for now; who can have them served elsewhere should."""
        ...


class StreamSettings(msgspec.Struct, frozen=True, kw_only=True):
    unit_id: str
    max_streams: int = MAX_STREAMS
    hello_deadline_s: float = HELLO_DEADLINE_S
    silence_s: float = SILENCE_S


class GatewayConnection(asyncio.Protocol):
    """All frames that one turn of the event loop produces for the gateway leave in one write."""

    def __init__(
        self,
        settings: StreamSettings,
        handler: StreamHandler,
        *,
        token: Callable[[], str | None],
        on_lost: Callable[["GatewayConnection"], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._handler = handler
        self._token = token
        self._on_lost = on_lost
        self._splitter = FrameSplitter(MAX_HELLO_BYTES)
        self._transport: asyncio.Transport | None = None
        self._welcomed = False
        self._closing = False
        self._streams: dict[int, TokenStream] = {}
        self._outgoing: list[bytes] = []
        self._last_received_s = self._last_sent_s = self._loop.time()
        self._opened_s = self._last_received_s
        self._said_stalled = False
        self._beat = ConnectionHeartbeat(HEARTBEAT_S / 2, self._on_beat)

    def close(self) -> None:
        """Sends what is queued, then closes."""
        self._closing = True
        self._write()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        bound_silence(transport, lost_s=max(PEER_LOST_S, self._settings.silence_s))
        self._beat.start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._transport = None
        self._beat.stop()
        for stream in self._streams.values():
            self._handler.cancel(stream)
        self._streams.clear()
        self._outgoing.clear()
        self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        self._last_received_s = self._loop.time()
        try:
            for body in self._splitter.feed(data):
                self._take(_DECODER.decode(body))
                if self._closing:
                    return
        except (FrameTooLarge, msgspec.DecodeError, ProtocolViolation) as error:
            self._refuse(str(error))

    # what the gateway says

    def _take(self, message: ToUnit) -> None:
        if isinstance(message, Hello):
            self._greet(message)
            return
        if not self._welcomed:
            raise ProtocolViolation("a connection begins with Hello")
        match message:
            case Generate():
                self._open(message)
            case Cancel(stream=stream_id):
                stream = self._streams.pop(stream_id, None)  # absent: its last Delta was on its way
                if stream is not None:
                    self._handler.cancel(stream)
            case Credit(stream=stream_id, deltas=deltas):
                if deltas < 1:
                    raise ProtocolViolation(f"credit of {deltas} Deltas")
                stream = self._streams.get(stream_id)
                if stream is not None:
                    stream.grant(deltas)
            case FetchKv():
                self._handler.give_kv(message, self._queue)
            case Ping():
                pass

    def _greet(self, hello: Hello) -> None:
        if self._welcomed:
            raise ProtocolViolation("a second Hello")
        check_hello(hello, version=PROTOCOL_VERSION, token=self._token(), speaker="this unit")
        self._welcomed = True
        self._splitter.max_frame_bytes = MAX_FRAME_BYTES
        self._queue(Welcome(self._settings.unit_id))

    def _open(self, message: Generate) -> None:
        if message.stream in self._streams:
            raise ProtocolViolation(f"stream {message.stream} is open already")
        if message.credit < 0:
            raise ProtocolViolation(f"credit of {message.credit} Deltas")
        if len(self._streams) >= self._settings.max_streams:
            error = f"{len(self._streams)} streams are open on this connection, more are not taken"
            self._send_delta(Delta(message.stream, 0, "", [], finish=FinishReason.ERROR, error=error, retryable=True))
            return
        stream = self._handler.open(message, self._send_delta)
        if stream is not None and not stream.finished:
            self._streams[message.stream] = stream

    # what the unit says

    def _send_delta(self, delta: Delta) -> None:
        if delta.finish is not None:
            self._streams.pop(delta.stream, None)
        self._queue(delta)

    def _queue(self, message: FromUnit) -> None:
        if self._closing:
            return
        if not self._outgoing:
            self._loop.call_soon(self._write)
        self._outgoing.append(encode(message))

    def _write(self) -> None:
        if self._outgoing and self._transport is not None:
            self._transport.write(b"".join(self._outgoing))
            self._last_sent_s = self._loop.time()
        self._outgoing.clear()

    def _refuse(self, reason: str) -> None:
        logger.warning("refused a gateway", extra={"reason": reason})
        self._queue(Refused(reason))
        self.close()

    def _on_beat(self, now_s: float, punctual: bool) -> None:
        if not self._welcomed and not self._closing and now_s - self._opened_s > self._settings.hello_deadline_s:
            self._refuse(f"no Hello in {self._settings.hello_deadline_s:g} s")
        if punctual and now_s - self._last_received_s > self._settings.silence_s:
            logger.warning("a gateway went silent", extra={"streams": len(self._streams)})
            self._beat.stop()
            self.abort()
            return
        stalled = self._handler.is_stalled()
        if self._welcomed and (stalled is not self._said_stalled or now_s - self._last_sent_s >= HEARTBEAT_S):
            self._said_stalled = stalled
            self._queue(Ping(stalled=stalled))
