"""The control loop's end of units' heartbeats: frames, and who is heard."""

import asyncio
import socket

import msgspec
import pytest
from control_loop_standin import (
    TOKEN,
    Answers,
    a_report,
    lease_of,
    listening,
)
from hypothesis import given, reject
from hypothesis import strategies as st

from deploy.serve.lease_server import LeaseServer
from pdmux_actor.errors import StreamRefused
from pdmux_actor.lease import Lease, UnitReport
from pdmux_actor.serving.control_link import (
    CONTROL_VERSION,
    ControlAddress,
    ControlStream,
    FromControl,
    Heartbeat,
    Leased,
    ToControl,
)
from pdmux_actor.serving.frames import Hello, Ping, Refused, framed


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
