"""A unit's way to its control loop: the stream for heartbeats, and Serve's calls where there is none."""

import asyncio

import msgspec
import pytest
from control_loop_standin import (
    NOBODY,
    TOKEN,
    Answers,
    a_report,
    lease_of,
    linked,
    listening,
)

from pdmux_actor.errors import StreamRefused
from pdmux_actor.serving import control_link
from pdmux_actor.serving.control_link import (
    ControlAddress,
)
from pdmux_actor.serving.frames import Ping, framed


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


async def test_link__connection_refused_once__has_a_stream_again_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control loop ended between its answer and the connection; the next one is there soon."""
    now_s = 1000.0
    monkeypatch.setattr(control_link.time, "monotonic", lambda: now_s)
    answers = Answers()
    link, handle = await linked(answers, monkeypatch, NOBODY)
    await link.heartbeat(a_report())

    handle.address = await listening(answers)
    for _ in range(4):
        now_s += 0.5
        await link.heartbeat(a_report())

    assert handle.asked == 2


async def test_link__never_reached__is_tried_and_told_more_and_more_rarely_until_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 0.0
    monkeypatch.setattr(control_link.time, "monotonic", lambda: now_s)
    answers = Answers()
    link, handle = await linked(answers, monkeypatch, NOBODY)
    tried_s = []

    for now_s in range(200):
        asked = handle.asked
        await link.heartbeat(a_report())
        tried_s += [now_s] * (handle.asked - asked)
    assert tried_s == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert [r.getMessage()[:29] for r in caplog.records] == ["no stream to the control loop"] * 4

    now_s, handle.address = 300, await listening(answers)
    await link.heartbeat(a_report())
    link.close()  # as it breaks
    handle.address, asked = NOBODY, handle.asked
    for _ in range(3):
        now_s += 1
        await link.heartbeat(a_report())
    assert handle.asked - asked == 2


@pytest.mark.parametrize("address", [None, NOBODY])
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
