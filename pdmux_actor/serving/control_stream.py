"""A unit's end of its heartbeat stream."""

import asyncio
from collections.abc import Iterator

from pdmux_actor.errors import StreamRefused
from pdmux_actor.lease import Lease, UnitReport
from pdmux_actor.serving.control_frames import CONTROL_VERSION, ControlAddress, FromControl, Heartbeat
from pdmux_actor.serving.frames import FrameReader, Hello, Refused, framed
from pdmux_actor.serving.tcp_timeouts import bound_silence

_READ_BYTES = 64 * 1024


class ControlStream:
    """One heartbeat at a time. Of no use after anything but an answer came of one, a cancellation too."""

    def __init__(self, endpoint: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._endpoint = endpoint
        self._reader = reader
        self._writer = writer
        self._frames: FrameReader[FromControl] = FrameReader(FromControl)
        self._arrived: Iterator[FromControl] = iter(())

    @classmethod
    async def open(cls, address: ControlAddress) -> "ControlStream":
        """Raises OSError."""
        host, _, port = address.endpoint.rpartition(":")
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))  # no deadline: the caller's
        bound_silence(writer.transport)
        stream = cls(address.endpoint, reader, writer)
        writer.write(framed(Hello(version=CONTROL_VERSION, token=address.token)))
        return stream

    async def heartbeat(self, report: UnitReport) -> Lease | None:
        """None: the lease whose version the report bears is in force.

        Raises:
            ConnectionError: the control loop went away.
            StreamRefused: it does not take what it is sent.
            msgspec.DecodeError, FrameTooLarge: it breaks the protocol.
        """
        self._writer.write(framed(Heartbeat(report)))
        answer = await self._next()
        if isinstance(answer, Refused):
            raise StreamRefused(endpoint=self._endpoint, reason=answer.reason)
        return answer.lease

    def close(self) -> None:
        self._writer.transport.abort()

    async def _next(self) -> FromControl:
        while (message := next(self._arrived, None)) is None:
            data = await self._reader.read(_READ_BYTES)  # no deadline: the caller's
            if not data:
                raise ConnectionError(f"the control loop at {self._endpoint} closed the stream")
            self._arrived = self._frames.feed(data)
        return message
