"""Units' heartbeats on a stream of their own, beside Serve's calls."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from fleet_model import FakeUnit
from hypothesis import given, reject
from hypothesis import strategies as st
from ray import serve
from ray.exceptions import RayTaskError

from deploy.serve import controller
from deploy.serve.controller import Controller
from deploy.serve.lease_server import LeaseServer
from pdmux_actor.errors import StreamRefused
from pdmux_actor.lease import Lease, ModelAssignment, UnitReport
from pdmux_actor.messages import Slo
from pdmux_actor.serving import control_link
from pdmux_actor.serving.control_frames import (
    CONTROL_VERSION,
    ControlAddress,
    FromControl,
    Heartbeat,
    Leased,
    ToControl,
)
from pdmux_actor.serving.control_link import ControlLink
from pdmux_actor.serving.control_stream import ControlStream
from pdmux_actor.serving.frames import Hello, Ping, Refused, framed

TOKEN = "secret"
MODEL = ModelAssignment(model="m", source="/m", quota_blocks=7, slo=Slo(ttft_s=1.0, tbt_s=0.05))


def lease_of(version: int) -> Lease:
    return Lease(version=version, models=(MODEL,), policy="mux", stream_token=TOKEN)


class Answers:
    """What a control loop says to heartbeats."""

    def __init__(self, version: int = 1) -> None:
        self.version = version
        self.heard: list[str] = []

    def __call__(self, report: UnitReport) -> Lease:
        if report.unit_id == "poison":
            raise RuntimeError("a bug")
        self.heard.append(report.unit_id)
        return lease_of(self.version)


class TakenLeadership:
    """Implements Leadership."""

    def __init__(self) -> None:
        self.is_over = False

    def take(self) -> None:
        self.is_over = False

    def is_taken_over(self) -> bool:
        return self.is_over


class Called:
    def __init__(self, method: Callable[..., Awaitable[Any]]) -> None:
        self.remote = method


class ServeHandle:
    """Serve's, of a control loop that listens at `address`; None: of an earlier release. One that is `taken_over` heard
    of the next before Serve did.
    """

    def __init__(self, answers: Answers, address: ControlAddress | None) -> None:
        self.answers, self.address, self.asked, self.taken_over = answers, address, 0, False
        self.lease_stream, self.heartbeat = Called(self._lease_stream), Called(self._heartbeat)

    async def _lease_stream(self) -> ControlAddress:
        self.asked += 1
        if self.taken_over:
            error: RayTaskError = RayTaskError("lease_stream", "", await refused_by_taken_over())
            raise error.as_instanceof_cause()
        if self.address is None:
            raise RayTaskError("lease_stream", "", AttributeError())
        return self.address

    async def _heartbeat(self, report: UnitReport) -> Lease:
        return self.answers(report)


async def refused_by_taken_over() -> Exception:
    server = LeaseServer(TOKEN, Answers(), lambda: "127.0.0.1")
    server.close()
    try:
        await server.address()
    except OSError as error:
        return error
    raise AssertionError("a closed server gave its address")


async def listening(answers: Answers, token: str = TOKEN) -> ControlAddress:
    return replace(await LeaseServer(TOKEN, answers, lambda: "127.0.0.1").address(), token=token)


async def linked(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, address: ControlAddress | None
) -> tuple[ControlLink, ServeHandle]:
    handle = ServeHandle(answers, address)
    monkeypatch.setattr(serve, "get_deployment_handle", lambda deployment, application: handle)
    return ControlLink("Controller", "control"), handle


def a_report(unit_id: str = "u", lease_version: int = 0) -> UnitReport:
    return replace(FakeUnit(unit_id=unit_id).report(), lease_version=lease_version)


async def answered(address: ControlAddress, *sent: bytes) -> list[FromControl]:
    """All that comes back until the control loop closes the connection."""
    host, _, port = address.endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"".join(sent))
    data = await reader.read()
    writer.close()
    decoder: msgspec.msgpack.Decoder[FromControl] = msgspec.msgpack.Decoder(FromControl)
    return [decoder.decode(data[4:])] if data else []


def packed(message: Heartbeat | Leased) -> bytes:
    try:
        return framed(message)[4:]
    except OverflowError:  # no count of ours has more than 64 bits
        return reject()


@given(report=st.from_type(UnitReport))
def test_frames__any_report__comes_back_the_same(report: UnitReport) -> None:
    sent = packed(Heartbeat(report))
    decoder: msgspec.msgpack.Decoder[ToControl] = msgspec.msgpack.Decoder(ToControl)

    received = decoder.decode(sent)

    assert packed(received) == sent  # floats may be NaN
    assert repr(received) == repr(Heartbeat(report))


@given(lease=st.none() | st.from_type(Lease))
def test_frames__any_lease__comes_back_the_same(lease: Lease | None) -> None:
    sent = packed(Leased(lease))
    decoder: msgspec.msgpack.Decoder[FromControl] = msgspec.msgpack.Decoder(FromControl)

    assert repr(decoder.decode(sent)) == repr(Leased(lease))


async def test_link__heartbeats__are_leased_over_the_stream_and_serve_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = Answers()
    link, handle = await linked(answers, monkeypatch, await listening(answers))

    assert await link.heartbeat(a_report()) == lease_of(1)
    assert await link.heartbeat(a_report(lease_version=1)) == lease_of(1)  # said with a word
    answers.version = 2
    assert await link.heartbeat(a_report(lease_version=1)) == lease_of(2)
    assert handle.asked == 1
    assert answers.heard == ["u"] * 3


async def test_link__control_loop_goes_and_another_comes__is_found_by_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Answers(1), Answers(5)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    gone = ControlAddress(endpoint=f"127.0.0.1:{server.sockets[0].getsockname()[1]}", token=TOKEN)
    link, handle = await linked(first, monkeypatch, gone)

    with pytest.raises(ConnectionError):
        await link.heartbeat(a_report())
    handle.address = await listening(second)
    assert await link.heartbeat(a_report()) == lease_of(5)
    assert second.heard == ["u"]


async def test_link__control_loop_that_another_follows_on__sends_its_units_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Serve may start the next one while the one before still answers what it was asked."""
    monkeypatch.setattr(controller, "_LEADERSHIP_POLL_S", 0.01)
    leadership, second = TakenLeadership(), Answers(5)
    before = Controller(token=TOKEN, host=lambda: "127.0.0.1", leadership=leadership)
    await before.reconfigure({"models": [], "policy": "mux", "expected_units": {"p": 1}})
    link, handle = await linked(second, monkeypatch, await before.lease_stream())
    await link.heartbeat(a_report())

    leadership.is_over, handle.address = True, await listening(second)
    until_s = time.monotonic() + 30.0
    while not second.heard and time.monotonic() < until_s:
        with contextlib.suppress(ConnectionError):  # as its stream is closed
            await link.heartbeat(a_report())
        await asyncio.sleep(0.01)
    assert second.heard
    with pytest.raises(OSError, match="another control loop leads"):
        await before.lease_stream()


async def test_link__next_control_loop_that_serve_does_not_name_yet__gets_a_stream_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a node that is drained Serve starts the next one first, and names the one before until it is ready."""
    now_s = 1000.0
    monkeypatch.setattr(control_link.time, "monotonic", lambda: now_s)
    before, after = Answers(1), Answers(5)
    link, handle = await linked(before, monkeypatch, None)
    handle.taken_over = True

    for _ in range(3):
        assert await link.heartbeat(a_report()) == lease_of(1)
    assert handle.asked == 1  # not with each

    now_s += 5.0
    handle.taken_over, handle.address = False, await listening(after)
    assert await link.heartbeat(a_report()) == lease_of(5)
    assert handle.asked == 2


async def test_link__heartbeat_that_took_too_long__begins_a_new_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came late would else be taken for the answer to the next one."""
    silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(60), "127.0.0.1", 0)
    stuck = ControlAddress(endpoint=f"127.0.0.1:{silent.sockets[0].getsockname()[1]}", token=TOKEN)
    answers = Answers()
    link, handle = await linked(answers, monkeypatch, stuck)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await link.heartbeat(a_report())
    handle.address = await listening(answers)
    assert await link.heartbeat(a_report()) == lease_of(1)
    assert handle.asked == 2


@pytest.mark.parametrize("address", [None, ControlAddress(endpoint="127.0.0.1:1", token=TOKEN)])
async def test_link__no_stream_or_none_that_can_be_reached__heartbeats_go_by_serve(
    monkeypatch: pytest.MonkeyPatch, address: ControlAddress | None
) -> None:
    answers = Answers()
    link, handle = await linked(answers, monkeypatch, address)

    for _ in range(3):
        assert await link.heartbeat(a_report()) == lease_of(1)
    assert handle.asked == 1  # not with each

    monkeypatch.setattr(control_link.time, "monotonic", lambda: 1e12)
    handle.address = await listening(answers)
    assert await link.heartbeat(a_report()) == lease_of(1)
    assert handle.asked == 2


async def test_link__control_loop_refuses_the_stream__heartbeats_go_by_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a later release does not speak this unit's protocol: a new stream would be refused as well."""
    answers = Answers()
    link, handle = await linked(answers, monkeypatch, await listening(answers, token="of another protocol"))

    with pytest.raises(StreamRefused):
        await link.heartbeat(a_report())
    for _ in range(3):
        assert await link.heartbeat(a_report()) == lease_of(1)
    assert handle.asked == 1


async def test_link__control_loop_breaks_the_protocol__heartbeats_go_by_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(framed(Ping()))

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    other = ControlAddress(endpoint=f"127.0.0.1:{server.sockets[0].getsockname()[1]}", token=TOKEN)
    link, _ = await linked(Answers(), monkeypatch, other)

    with pytest.raises(msgspec.DecodeError):
        await link.heartbeat(a_report())
    assert await link.heartbeat(a_report()) == lease_of(1)


@pytest.mark.parametrize(
    ("token", "sent", "why"),
    [
        (TOKEN, [Heartbeat(a_report())], "begins with Hello"),
        (TOKEN, [Hello(version=CONTROL_VERSION + 1, token=TOKEN)], "protocol version"),
        (TOKEN, [Hello(version=CONTROL_VERSION, token="wrong")], "wrong stream token"),
        (TOKEN, [Ping()], "ping"),
    ],
)
async def test_server__what_it_cannot_take__is_refused_with_the_reason(
    token: str, sent: list[msgspec.Struct], why: str
) -> None:
    answers = Answers()

    (refused,) = await answered(await listening(answers, token), *map(framed, sent))

    assert isinstance(refused, Refused)
    assert why in refused.reason
    assert not answers.heard


async def test_server__no_hello_in_time__closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.serve.lease_server.HELLO_DEADLINE_S", 0.01)

    (refused,) = await answered(await listening(Answers()))

    assert isinstance(refused, Refused)
    assert "no Hello" in refused.reason


async def test_server__heartbeat_that_fails__costs_no_other_unit_its_stream() -> None:
    answers = Answers()
    address = await listening(answers)
    poison, healthy = await ControlStream.open(address), await ControlStream.open(address)

    assert await healthy.heartbeat(a_report()) == lease_of(1)
    with pytest.raises(StreamRefused, match="a bug"):
        await poison.heartbeat(a_report("poison"))
    assert await healthy.heartbeat(a_report(lease_version=1)) is None


async def test_server__closed_while_it_begins_to_listen__listens_no_more() -> None:
    server = LeaseServer(TOKEN, Answers(), lambda: "127.0.0.1")

    asked = asyncio.create_task(server.address())
    await asyncio.sleep(0)
    server.close()

    with pytest.raises(ConnectionRefusedError):
        await asked
    assert server._server is None or not server._server.is_serving()


@pytest.mark.parametrize("is_known", [True, False])
async def test_server__closed_while_a_unit_connects__hears_nothing_of_it(is_known: bool) -> None:
    answers = Answers()
    server = LeaseServer(TOKEN, answers, lambda: "127.0.0.1")
    address = await server.address()
    theirs, ours = socket.socketpair()
    theirs.sendall(framed(Hello(version=CONTROL_VERSION, token=address.token)) + framed(Heartbeat(a_report())))

    if is_known:  # asyncio asks for it, and tells it later that it is connected
        connection = server._connection()
        server.close()
    else:
        server.close()
        connection = server._connection()
    ours.setblocking(False)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, ours)
    for _ in range(5):
        await asyncio.sleep(0)

    assert not answers.heard
    assert not server._open
    theirs.close()


async def test_controller__start_that_took_long__waits_for_units_before_it_tells_gateways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gateway that asks first would else be told of a fleet without units."""
    ahead_s, clock = 0.0, time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + ahead_s)
    fresh = Controller(token=TOKEN, leadership=TakenLeadership(), going_nodes=frozenset)
    ahead_s = 60.0
    await fresh.reconfigure({"models": [], "policy": "mux", "expected_units": {"p": 1}})

    asking = asyncio.create_task(fresh.fleet_view())
    await asyncio.sleep(0.01)
    await fresh.heartbeat(a_report())

    assert [unit.report.unit_id for unit in (await asking).units] == ["u"]
