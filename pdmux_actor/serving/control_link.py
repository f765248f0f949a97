"""A unit's way to the control loop: heartbeats over a stream of their own, what is rare by Serve's calls.

A stream is of frames, as `frames` has them: msgpack, no pickle. The unit opens it with Hello and then sends a Heartbeat
at a time; each is answered. Serve's own calls cost each side a millisecond and more, which a control loop of a thousand
units does not have.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from ray import serve
from ray.exceptions import RayTaskError
from ray.serve.handle import DeploymentHandle

from pdmux_actor.errors import StreamRefused
from pdmux_actor.lease import Lease, UnitReport
from pdmux_actor.serving.connection_heartbeat import bound_silence
from pdmux_actor.serving.frames import FrameReader, FrameTooLarge, Hello, Refused, framed

CONTROL_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlAddress:
    """Says where the control loop hears units, and what lets them in. It is told by a call of Serve's."""

    endpoint: str
    token: str


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    report: UnitReport


class Leased(msgspec.Struct, frozen=True, tag="leased"):
    """None: the lease whose version the report bears is in force."""

    lease: Lease | None


ToControl = Hello | Heartbeat
FromControl = Leased | Refused


logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 2.0
_FIRST_RETRY_S = 1.0  # where there is no stream: heartbeats go by Serve's calls meanwhile
_LAST_RETRY_S = 60.0
_NEXT_LEADER_RETRY_S = 2.0  # where Serve still names the control loop that another follows on
_NOT_SPOKEN = (StreamRefused, FrameTooLarge, msgspec.DecodeError)


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


class ControlLink:
    """Call from one event loop, a heartbeat at a time, each with a deadline of the caller's. Where the stream breaks,
    Serve is asked anew who leads the units: only it knows when that is somebody else.
    """

    def __init__(self, deployment: str, application: str) -> None:
        self._deployment = deployment
        self._application = application
        self._handle: DeploymentHandle[Any] | None = None
        self._stream: ControlStream | None = None
        self._lease: Lease | None = None
        self._no_stream_until_s = float("-inf")
        self._retry_s = _FIRST_RETRY_S

    @property
    def has_handle(self) -> bool:
        """False until Serve has told of a control loop for the first time."""
        return self._handle is not None

    async def heartbeat(self, report: UnitReport) -> Lease:
        """Raises what Ray, Serve and sockets raise for "not there", "not yet" and "broken"."""
        stream = self._stream or await self._opened()
        if stream is None:
            self._lease = await (await self._serve_handle()).heartbeat.remote(report)
        else:
            try:
                self._lease = await stream.heartbeat(report) or self._known(report)
                self._retry_s = _FIRST_RETRY_S
            except BaseException as error:
                self.close()
                if isinstance(error, _NOT_SPOKEN):  # of another release: it would be the same with a new stream
                    self._wait_for_stream(_LAST_RETRY_S)
                raise
        return self._lease

    async def is_settled(self, unit_id: str) -> bool:
        """Raises as `heartbeat`."""
        return bool(await (await self._serve_handle()).is_settled.remote(unit_id))

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _known(self, report: UnitReport) -> Lease:
        lease = self._lease
        if lease is None or lease.version != report.lease_version:
            raise ConnectionError(f"the control loop takes lease {report.lease_version} for known")
        return lease

    async def _opened(self) -> ControlStream | None:
        """None: there is none for now."""
        if time.monotonic() < self._no_stream_until_s:
            return None
        handle = await self._serve_handle()
        try:
            address: ControlAddress = await handle.lease_stream.remote()
        except RayTaskError as error:  # the cause's class, too: else a control loop of an earlier release
            self._wait_for_stream(_NEXT_LEADER_RETRY_S if isinstance(error, ConnectionRefusedError) else None)
            return None
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                self._stream = await ControlStream.open(address)
        except OSError as error:  # TimeoutError is one
            if self._retry_s in (_FIRST_RETRY_S, _LAST_RETRY_S):
                logger.warning(
                    "no stream to the control loop: heartbeats go by Serve's calls, which cost it more",
                    extra={"endpoint": address.endpoint, "reason": repr(error)},
                )
            self._wait_for_stream()
        return self._stream

    def _wait_for_stream(self, retry_s: float | None = None) -> None:
        """None: the control loop may just have ended, so not for long, and twice as long the next time."""
        if retry_s is None:
            retry_s, self._retry_s = self._retry_s, min(2 * self._retry_s, _LAST_RETRY_S)
        self._no_stream_until_s = time.monotonic() + retry_s

    async def _serve_handle(self) -> DeploymentHandle[Any]:
        if self._handle is None:
            self._handle = await asyncio.to_thread(serve.get_deployment_handle, self._deployment, self._application)
        return self._handle
