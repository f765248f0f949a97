"""A control loop that begins, and the one before that has not ended yet."""

import asyncio
import contextlib
import time

import pytest
from control_loop_standin import (
    TOKEN,
    Answers,
    TakenLeadership,
    a_report,
    lease_of,
    linked,
    listening,
)

from deploy.control.cordons import Cordon, CordonScope
from deploy.serve import controller
from deploy.serve.controller import Controller
from pdmux_actor.serving import control_link
from router.lived_clock import LivedClock


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


async def test_heartbeat__of_a_unit_that_the_next_control_loop_leads__is_not_outbid_by_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its stream to the next one broke, and Serve sends its call to the one before, whose plan is another."""
    monkeypatch.setattr(controller, "_LEADERSHIP_POLL_S", 0.01)
    leadership = TakenLeadership()
    before = Controller(token=TOKEN, host=lambda: "127.0.0.1", leadership=leadership)
    await before.reconfigure({"models": [], "policy": "mux", "expected_units": {"p": 1}})
    own = await before.heartbeat(a_report())

    async def until_refused() -> None:
        nonlocal own
        async with asyncio.timeout(30):
            while True:
                await before.heartbeat(a_report(lease_version=own.version + 1000))
                own = await before.heartbeat(a_report())
                await asyncio.sleep(0.01)

    leadership.is_over = True
    with pytest.raises(ConnectionRefusedError, match="another control loop leads"):
        await until_refused()

    assert await before.heartbeat(a_report(lease_version=own.version)) == own, "no other has led it yet"


class CountedWrites:
    """Stands where KeptState would."""

    problem = ""

    def __init__(self) -> None:
        self.writes = 0

    def keep_events(self, log: object) -> None:
        self.writes += 1

    def keep_usage(self, usage: object) -> None:
        pass

    def keep(self, state: object) -> None:
        pass


async def test_controller__units_are_with_the_next_one__overwrites_no_state_until_they_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, seconds in (("_LEADERSHIP_POLL_S", 0.01), ("_KEEP_EVERY_S", 0.01), ("_LEFT_S", 0.2)):
        monkeypatch.setattr(controller, name, seconds)
    leadership, kept = TakenLeadership(), CountedWrites()
    before = Controller(token=TOKEN, host=lambda: "127.0.0.1", leadership=leadership)
    await before.reconfigure({"models": [], "policy": "mux", "expected_units": {"p": 1}})
    monkeypatch.setattr(before, "_state", kept)

    async with asyncio.timeout(60):
        while not kept.writes:  # noqa: ASYNC110  it sets no event
            await asyncio.sleep(0.01)
        leadership.is_over, already = True, -1
        while kept.writes != already:
            already = kept.writes
            await asyncio.sleep(0.5)
        while kept.writes == already:
            await before.heartbeat(a_report())  # by Serve's call: the next one has failed
            await asyncio.sleep(0.02)


async def test_controller__stood_while_the_next_one_came__overwrites_no_state_as_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before it is told, too, that the next one has come."""
    for name, seconds in (("_LEADERSHIP_POLL_S", 0.3), ("_KEEP_EVERY_S", 0.01)):
        monkeypatch.setattr(controller, name, seconds)
    leadership, kept = TakenLeadership(), CountedWrites()
    before = Controller(token=TOKEN, host=lambda: "127.0.0.1", leadership=leadership)
    await before.reconfigure({"models": [], "policy": "mux", "expected_units": {"p": 1}})
    monkeypatch.setattr(before, "_state", kept)
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 20.0)
    await before.heartbeat(a_report())  # it had come before it stood, and lay unread
    async with asyncio.timeout(60):
        while not kept.writes:  # noqa: ASYNC110  it sets no event
            await asyncio.sleep(0.01)  # nobody came meanwhile: it goes on

    leadership.is_over, already = True, kept.writes
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 40.0)
    await before.heartbeat(a_report())
    await asyncio.sleep(1.0)  # of the three after which units that say nothing are with the next one

    assert kept.writes == already


async def test_cordon__control_loop_stood_a_moment_ago__is_in_force_where_nobody_else_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leadership = TakenLeadership()
    alone = Controller(token=TOKEN, host=lambda: "127.0.0.1", leadership=leadership)
    await alone.reconfigure({"models": [], "policy": "mux", "expected_units": {"p": 1}})
    monotonic, stood_s = time.monotonic, 20.0
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + stood_s)
    await alone.heartbeat(a_report())

    await alone.cordon(Cordon(scope=CordonScope.NODE, name="n"))
    assert await alone.uncordon(CordonScope.NODE, "n")

    stood_s, leadership.is_over = 40.0, True
    await alone.heartbeat(a_report())
    with pytest.raises(ConnectionRefusedError, match="another control loop"):
        await alone.cordon(Cordon(scope=CordonScope.NODE, name="n"))


async def test_cordon__units_are_with_the_next_one__is_refused_and_overwrites_no_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Serve may still send an operator's call to the one before."""
    monkeypatch.setattr(controller, "_LEADERSHIP_POLL_S", 0.01)
    leadership, kept = TakenLeadership(), CountedWrites()
    before = Controller(token=TOKEN, host=lambda: "127.0.0.1", leadership=leadership)
    await before.reconfigure({"models": [], "policy": "mux", "expected_units": {"p": 1}})
    monkeypatch.setattr(before, "_state", kept)
    leadership.is_over = True
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionRefusedError):
            while await before.lease_stream():  # noqa: ASYNC110  it sets no event
                await asyncio.sleep(0.01)

    with pytest.raises(ConnectionRefusedError, match="another control loop"):
        await before.cordon(Cordon(scope=CordonScope.NODE, name="n"))
    with pytest.raises(ConnectionRefusedError, match="another control loop"):
        await before.uncordon(CordonScope.NODE, "n")

    assert (await before.status()).cordons == ()
    assert kept.writes == 0


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


class SetClock(LivedClock):
    """Tells another time without having stood."""

    ahead_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.ahead_s


async def test_controller__start_that_took_long__waits_for_units_before_it_tells_gateways() -> None:
    """A gateway that asks first would else be told of a fleet without units."""
    clock = SetClock()
    fresh = Controller(token=TOKEN, leadership=TakenLeadership(), going_nodes=frozenset, clock=clock)
    clock.ahead_s = 60.0
    await fresh.reconfigure({"models": [], "policy": "mux", "expected_units": {"p": 1}})

    asking = asyncio.create_task(fresh.fleet_view())
    await asyncio.sleep(0.01)
    await fresh.heartbeat(a_report())

    assert [unit.report.unit_id for unit in (await asking).units] == ["u"]
