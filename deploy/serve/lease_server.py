"""Hears units' heartbeats on streams of their own and answers with leases: the control loop's end."""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

import msgspec

from pdmux_actor.lease import Lease, UnitReport
from pdmux_actor.serving.connection_heartbeat import bound_silence
from pdmux_actor.serving.control_link import (
    CONTROL_VERSION,
    ControlAddress,
    FromControl,
    Heartbeat,
    Leased,
    ToControl,
)
from pdmux_actor.serving.frames import (
    HELLO_DEADLINE_S,
    MAX_HELLO_BYTES,
    FrameSplitter,
    FrameTooLarge,
    Hello,
    ProtocolViolation,
    Refused,
    check_hello,
    framed,
)

logger = logging.getLogger(__name__)

_MAX_REPORT_BYTES = 16 * 1024 * 1024
_DECODER: msgspec.msgpack.Decoder[ToControl] = msgspec.msgpack.Decoder(ToControl)

AnswerHeartbeat = Callable[[UnitReport], Lease]


class LeaseServer:
    """Listens from the first question for its address on."""

    def __init__(self, token: str, answer: AnswerHeartbeat, host: Callable[[], str]) -> None:
        self._token = token
        self._answer = answer
        self._host = host
        self._starting: asyncio.Task[ControlAddress] | None = None
        self._server: asyncio.Server | None = None
        self._open: set[LeaseConnection] = set()
        self._is_closed = False

    async def address(self) -> ControlAddress:
        """Raises OSError: it cannot listen, and the next question tries again; or it is closed."""
        self._check_open()
        failed = self._starting is not None and self._starting.done() and self._starting.exception() is not None
        if self._starting is None or failed:
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> ControlAddress:
        host, loop = self._host(), asyncio.get_running_loop()
        server = self._server = await loop.create_server(self._connection, host, 0, backlog=1024)
        if self._is_closed:  # meanwhile
            server.close()
        self._check_open()
        port: int = server.sockets[0].getsockname()[1]
        return ControlAddress(endpoint=f"{host}:{port}", token=self._token)

    def close(self) -> None:
        """Units ask Serve from now on who leads them."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._open):
            connection.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionRefusedError("another control loop leads the units")

    def _connection(self) -> "LeaseConnection":
        connection = LeaseConnection(self._token, self._answer, on_lost=self._open.discard)
        self._open.add(connection)
        if self._is_closed:  # as it was accepted
            connection.close()
        return connection


class LeaseConnection(asyncio.Protocol):
    """A unit's connection. What is wrong is answered with Refused, and ends it: the unit asks Serve then."""

    def __init__(self, token: str, answer: AnswerHeartbeat, *, on_lost: Callable[["LeaseConnection"], None]) -> None:
        self._token = token
        self._answer = answer
        self._on_lost = on_lost
        self._splitter = FrameSplitter(MAX_HELLO_BYTES)
        self._transport: asyncio.Transport | None = None
        self._is_greeted = False
        self._is_closed = False
        self._hello_deadline: asyncio.TimerHandle | None = None

    def close(self) -> None:
        self._is_closed = True
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._is_closed:  # before it was made
            return self.close()
        bound_silence(transport)
        late = f"no Hello in {HELLO_DEADLINE_S:g} s"
        self._hello_deadline = asyncio.get_running_loop().call_later(HELLO_DEADLINE_S, self._refuse, late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._greeted()
        self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._splitter.feed(data):
                self._take(_DECODER.decode(body))
                if self._transport is None:
                    return
        except (FrameTooLarge, msgspec.DecodeError, ProtocolViolation) as error:
            self._refuse(str(error))
        except Exception as error:  # one unit's heartbeat must not cost the others theirs
            logger.exception("a heartbeat cannot be answered")
            self._refuse(repr(error))

    def _take(self, message: ToControl) -> None:
        match message:
            case Hello():
                self._greet(message)
            case Heartbeat(report=report):
                if not self._is_greeted:
                    raise ProtocolViolation("a connection begins with Hello")
                lease = self._answer(report)
                self._send(Leased(None if lease.version == report.lease_version else lease))

    def _greet(self, hello: Hello) -> None:
        check_hello(hello, version=CONTROL_VERSION, token=self._token, speaker="this control loop")
        self._is_greeted = True
        self._splitter.max_frame_bytes = _MAX_REPORT_BYTES
        self._greeted()

    def _greeted(self) -> None:
        if self._hello_deadline is not None:
            self._hello_deadline.cancel()
            self._hello_deadline = None

    def _send(self, message: FromControl) -> None:
        if self._transport is not None:
            self._transport.write(framed(message))

    def _refuse(self, reason: str) -> None:
        if self._transport is not None:
            logger.warning("refused a unit's heartbeats", extra={"reason": reason})
            self._send(Refused(reason))
            self.close()
