"""One TCP connection to a unit: framing, heartbeats, and many streams at once."""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import cast

import msgspec

from pdmux_actor.errors import StreamRefused, UnitLost
from pdmux_actor.messages import GenerateRequest
from pdmux_actor.serving.connection_heartbeat import PEER_LOST_S, ConnectionHeartbeat, bound_silence
from pdmux_actor.serving.frames import (
    HEARTBEAT_S,
    INITIAL_CREDIT,
    PROTOCOL_VERSION,
    SILENCE_S,
    Cancel,
    Credit,
    Delta,
    FrameReader,
    FrameTooLarge,
    FromUnit,
    Generate,
    Hello,
    Ping,
    Refused,
    ToUnit,
    Welcome,
    encode,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceLimits:
    """Limits how long a unit may say nothing: after `suspect_s` its streams may go on elsewhere, after `lost_s` they
    must.
    """

    suspect_s: float = 3.0
    lost_s: float = SILENCE_S


class GatewayStood(UnitLost):
    """The gateway's own process had stood for so long that the unit took it for lost: the unit is not to blame."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Nothing comes of the stream for now, which is still open."""

    reason: str


_GRANT_DELTAS = INITIAL_CREDIT // 2  # credit is returned in lumps: one frame per that many Deltas


class DeltaStream:
    """Deltas of one request, in order, until one has `finish` set, and a Stall now and then while the unit makes no
    progress. Whoever opened it closes it.
    """

    def __init__(self, stream_id: int, connection: "FrameConnection") -> None:
        self.stream_id = stream_id
        self.finished = False
        self._connection = connection
        self._arrived: deque[Delta | UnitLost | None] = deque()  # None: look at `_stall`
        self._awaited: asyncio.Future[None] | None = None  # of who waits for the next; one reader at a time
        self._stall: Stall | None = None
        self._expected_sequence = 0
        self._consumed = 0

    def put(self, delta: Delta) -> bool:
        """False if a Delta is missing or the unit sends more than it was granted."""
        if delta.sequence != self._expected_sequence or len(self._arrived) > 2 * INITIAL_CREDIT:
            return False
        self._expected_sequence += 1
        self.finished = delta.finish is not None
        self._stall = None
        self._arrive(delta)
        return True

    def note_stall(self, stall: Stall) -> None:
        """Told once for all that is noted until somebody reads it, and not if a Delta comes first."""
        if self._stall is None and not self.finished:
            self._stall = stall
            self._arrive(None)

    def fail(self, error: UnitLost) -> None:
        if not self.finished:
            self._arrive(error)

    def __aiter__(self) -> "DeltaStream":
        return self

    async def __anext__(self) -> Delta | Stall:
        """Raises:
        UnitLost: the connection broke before the stream's last Delta.
        """
        # no deadline: stalls are told, and `SilenceLimits` end the connection
        while True:
            while not self._arrived:
                if self.finished:
                    raise StopAsyncIteration
                self._awaited = asyncio.get_running_loop().create_future()
                await self._awaited
            item = self._arrived.popleft()
            if item is None:
                if (stall := self._stall) is not None:
                    self._stall = None
                    return stall
                continue
            if isinstance(item, UnitLost):
                raise item
            self._consumed += 1
            if self._consumed == _GRANT_DELTAS and not self.finished:
                self._connection.send(Credit(stream=self.stream_id, deltas=self._consumed))
                self._consumed = 0
            return item

    def close(self) -> None:
        """Cancels the request unless its last Delta has arrived."""
        self._connection.close_stream(self)

    def _arrive(self, item: Delta | UnitLost | None) -> None:
        self._arrived.append(item)
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)


class FrameConnection(asyncio.Protocol):
    """Opened by `loop.create_connection`; `welcomed` resolves to the unit's id or raises."""

    def __init__(self, *, endpoint: str, token: str, silence: SilenceLimits) -> None:
        self._loop = asyncio.get_running_loop()
        self._endpoint = endpoint
        self._token = token
        self._silence = silence
        self._frames: FrameReader[FromUnit] = FrameReader(FromUnit)
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, DeltaStream] = {}
        self._next_stream = 0
        self._unit_id = ""  # until it tells
        self._writable = asyncio.Event()
        self._last_received_s = self._last_sent_s = self._loop.time()
        self._beat = ConnectionHeartbeat(HEARTBEAT_S / 2, self._on_beat)
        self.lost = False
        self.stall: Stall | None = None  # of the unit: for what is sent there from now on, too
        self.welcomed: asyncio.Future[str] = self._loop.create_future()

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    async def open_stream(self, request: GenerateRequest) -> DeltaStream:
        """Raises:
        UnitLost: the connection broke while it was waiting for room in the socket.
        """
        # no deadline: a peer that does not read says nothing either, and `SilenceLimits` end the connection
        await self._writable.wait()
        if self.lost:
            raise UnitLost(endpoint=self._endpoint, reason="the connection broke")
        stream = DeltaStream(self._next_stream, self)
        self._next_stream += 1
        self._streams[stream.stream_id] = stream
        self.send(Generate(stream=stream.stream_id, request=request))
        return stream

    def close_stream(self, stream: DeltaStream) -> None:
        if self._streams.pop(stream.stream_id, None) is not None and not stream.finished:
            self.send(Cancel(stream=stream.stream_id))

    def send(self, message: ToUnit) -> None:
        if self.lost or self._transport is None:
            return  # the streams learn of the loss by their own UnitLost
        self._transport.write(encode(message))
        self._last_sent_s = self._loop.time()

    def close(self, reason: str) -> None:
        if self.lost:
            return
        self.lost = True
        self._writable.set()
        self._beat.stop()
        if self._transport is not None:
            self._transport.abort()
        error = self._loss(reason)
        if not self.welcomed.done():
            self.welcomed.set_exception(error)
            self.welcomed.exception()  # whoever waited may be gone; the loss is logged below
        if self._streams:
            streams = len(self._streams)
            told = {"unit": self._unit_id, "endpoint": self._endpoint, "streams": streams, "reason": error.reason}
            logger.warning("lost a unit's stream", extra=told)
        for stream in self._streams.values():
            stream.fail(error)
        self._streams.clear()

    def _loss(self, reason: str) -> UnitLost:
        stood_s = self._beat.just_stood_s()
        if stood_s < SILENCE_S - 2 * HEARTBEAT_S:  # the unit had heard of it as late as two beats before
            return UnitLost(endpoint=self._endpoint, reason=reason)
        return GatewayStood(endpoint=self._endpoint, reason=f"this gateway stood for {stood_s:.1f} s, and {reason}")

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.lost:  # the attempt timed out meanwhile
            cast(asyncio.Transport, transport).abort()
            return
        self._transport = cast(asyncio.Transport, transport)
        bound_silence(transport, lost_s=max(PEER_LOST_S, self._silence.lost_s))
        self._writable.set()
        self._last_received_s = self._loop.time()
        self.send(Hello(version=PROTOCOL_VERSION, token=self._token))
        self._beat.start()

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(f"the connection broke: {exc}" if exc is not None else "the unit closed the connection")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._last_received_s = self._loop.time()
        try:
            for message in self._frames.feed(data):
                self._on_message(message)
                if self.lost:
                    return
        except (FrameTooLarge, msgspec.DecodeError) as error:
            self.close(f"the unit broke the protocol: {error}")

    def _on_message(self, message: FromUnit) -> None:
        match message:
            case Delta(stream=stream_id):
                self.stall = None
                stream = self._streams.get(stream_id)  # absent: cancelled, the Delta was on its way
                if stream is not None and not stream.put(message):
                    self.close(
                        f"the unit broke the protocol: Delta {message.sequence} of stream {stream_id} is not due"
                    )
            case Welcome(unit_id=unit_id):
                self._unit_id = unit_id
                if not self.welcomed.done():
                    self.welcomed.set_result(unit_id)
            case Refused(reason=reason):
                if not self.welcomed.done():
                    self.welcomed.set_exception(StreamRefused(endpoint=self._endpoint, reason=reason))
                self.close(f"the unit refused the stream: {reason}")
            case Ping(stalled=stalled):
                self._note_stall("its engine makes no progress" if stalled else None)

    def _note_stall(self, reason: str | None) -> None:
        self.stall = None if reason is None else Stall(reason)
        if self.stall is not None:
            for stream in self._streams.values():
                stream.note_stall(self.stall)

    def _on_beat(self, now_s: float, punctual: bool) -> None:
        silent_s = now_s - self._last_received_s
        if punctual and silent_s > self._silence.lost_s:
            self.close(f"silent for {silent_s:.1f} s")
            return
        if punctual and silent_s > self._silence.suspect_s:
            self._note_stall(f"silent for {silent_s:.1f} s")
        if now_s - self._last_sent_s >= HEARTBEAT_S:
            self.send(Ping())
