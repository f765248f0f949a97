"""Clocks that jump: a control loop that stood, a machine that was suspended or whose time was set."""

import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from fleet_model import FakeUnit
from test_controller import checkpoint, in_place, user_config
from test_kept_state import STATE

from deploy.control.control_state import ControlState
from deploy.fleet_file.section import StateSection
from deploy.serve.controller import Controller
from deploy.serve.kept_state import KeptState
from router.admission.demand_report import DemandReport, ModelAsked
from router.lived_clock import LivedClock
from router.telemetry.fleet_event import FleetEvent

HOUR_S = 3600.0


class Times:
    """The machine's two clocks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stood_s = self.set_s = 0.0
        monotonic, wall = time.monotonic, time.time
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + self.stood_s)
        monkeypatch.setattr(time, "time", lambda: wall() + self.stood_s + self.set_s)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    return Times(monkeypatch)


@pytest.fixture
async def controller(tmp_path: Path) -> Controller:
    controller = Controller(token="t", going_nodes=frozenset, check_serve_answers=lambda: None)
    state = {"folder": str(tmp_path)}
    await controller.reconfigure({"models": [], "policy": "mux", "expected_units": {"p": 2}, "state": state})
    return controller


def test_clock__process_stood__stood_as_long_and_the_time_of_day_is_right(times: Times) -> None:
    clock = LivedClock()
    before_s = clock.now_s()

    times.stood_s += 60.0

    assert clock.now_s() - before_s < 1.0
    assert clock.now_s() + clock.epoch_s() == pytest.approx(time.time(), abs=1.0)


def test_clock__nothing_jumps__time_of_day_is_the_same_to_the_last_bit() -> None:
    clock = LivedClock()
    assert len({clock.epoch_s() for _ in range(100)}) == 1


async def test_controller__stood_for_a_while__takes_no_unit_for_lost(times: Times, controller: Controller) -> None:
    """Heartbeats of the others lie unread as it hears the first one."""
    units = [FakeUnit(unit_id="u1"), FakeUnit(unit_id="u2")]
    for unit in units:
        await controller.heartbeat(unit.report())

    times.stood_s += 20.0
    await controller.heartbeat(units[0].report())

    view = await controller.fleet_view()
    assert [u.report.unit_id for u in view.units] == ["u1", "u2"]
    assert view.units[1].age_s < 5.0


async def test_controller__stood_while_gateways_counted__takes_what_came_meanwhile_for_no_jump(
    times: Times, tmp_path: Path
) -> None:
    controller = Controller(token="t", planner_for=in_place, going_nodes=frozenset, check_serve_answers=lambda: None)
    config = user_config(checkpoint(tmp_path / "m"), state={"folder": str(tmp_path / "state")})
    await controller.reconfigure(config)
    await controller.heartbeat(FakeUnit(unit_id="u").report())
    asked = 0

    async def rates_per_s(seconds: int) -> list[float]:
        nonlocal asked
        found = []
        for _ in range(seconds):
            times.stood_s += 1.0
            asked += 4
            told = ModelAsked(model="m0", requests_total=asked, prompt_tokens_total=asked, output_tokens_total=asked)
            await controller.fleet_view(DemandReport(gateway_id="g", models=(told,)))
            found += [model.rate_per_s for model in (await controller.status()).models]
        return found

    before_per_s = (await rates_per_s(60))[-1]
    times.stood_s += 60.0
    asked += 240

    assert max(await rates_per_s(12)) < 1.5 * before_per_s


@pytest.mark.parametrize("by_s", [5 * HOUR_S, -5 * HOUR_S])
async def test_controller__machines_time_is_set__events_are_told_by_the_new_one(
    times: Times, controller: Controller, by_s: float
) -> None:
    times.set_s += by_s
    await controller.heartbeat(FakeUnit(unit_id="u1").report())

    told = msgspec.json.decode(await controller.events(60.0), type=tuple[FleetEvent, ...])

    assert [e.unit for e in told if e.kind == "unit_joined"] == ["u1"]


class OneDocument:
    """Stands where WriteBehind would."""

    def keep(self, name: str, document: ControlState, *, format: int) -> None:
        self._kept = document

    def load(self, name: str, kind: type, *, format: int) -> ControlState:
        return self._kept


@pytest.mark.parametrize("by_s", [5 * HOUR_S, -5 * HOUR_S])
def test_kept_state__machines_time_was_set__successor_goes_on(times: Times, by_s: float) -> None:
    """As on a machine that learns the time from the network after its start."""
    documents, before = OneDocument(), LivedClock()
    kept = KeptState("fleet", StateSection(), documents, before)
    times.set_s += by_s
    kept.keep(replace(STATE, noted_s=before.now_s()))

    after = LivedClock()
    found = KeptState("fleet", StateSection(), documents, after).load()

    assert found is not None
    assert found.noted_s == pytest.approx(after.now_s(), abs=5.0)
