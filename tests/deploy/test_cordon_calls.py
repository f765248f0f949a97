"""Cordons as a person asks for them: names of units and nodes, the Controller's answers, what is shown and kept."""

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fleet_model import SPEC, FakeUnit, fleet_status

from deploy.commands.drain import Drain
from deploy.commands.fleet_tables import as_dict, problems
from deploy.control.cordons import Cordon, CordonScope
from deploy.control.fleet_status import FleetStatus
from deploy.control.planner import PlanAnswer, PlannerInPlace, PlanTask, work_out
from deploy.errors import DrainRefused, DrainTimedOut, FleetNotNamed, FleetUnreachable, PlaceNotFound
from deploy.fleet_file.section import StateSection
from deploy.inspection.fleet_places import find_place, units_at
from deploy.local.running_fleets import RunningFleet, announced, only_fleet, process_started_s, this_boot
from deploy.serve.controller import Controller
from deploy.serve.kept_state import kept_state
from pdmux_actor.lease import ModelPhase
from placement.estimation.memory import resident_bytes
from placement.estimation.problem_arrays import Estimator
from placement.solvers.registry import SOLVERS
from router.lived_clock import LivedClock

UNIT, NODE = CordonScope.UNIT, CordonScope.NODE
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": SPEC.num_layers,
    "hidden_size": SPEC.hidden_size,
    "intermediate_size": SPEC.intermediate_size,
    "num_attention_heads": SPEC.num_heads,
    "num_key_value_heads": SPEC.num_kv_heads,
    "vocab_size": SPEC.vocab_size,
    "max_position_embeddings": 1024,
}
FLEET = fleet_status(FakeUnit("p-aa1", node="abc1"), FakeUnit("p-ab2", node="abd2"), FakeUnit("q-1", node="abd2"))


async def planned_here(task: PlanTask, solver: str, profiles: Mapping[str, str]) -> PlanAnswer:
    return work_out(task, SOLVERS[solver].make(Estimator(), lambda: False), Estimator())


def in_place(solver: str, profiles: Mapping[str, str]) -> PlannerInPlace:
    return PlannerInPlace(SOLVERS[solver].make(Estimator(), lambda: False), Estimator())


def fresh_controller() -> Controller:
    return Controller(token="t", planner_for=in_place, plan_once=planned_here, going_nodes=frozenset)


async def configured(controller: Controller, folder: Path) -> Controller:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    config: dict[str, Any] = {"policy": "mux", "expected_units": {"p": 2}, "placement": {"solver": "memory_greedy"}}
    config["state"] = {"folder": str(folder)}
    await controller.reconfigure({**config, "models": [{"id": m, "source": str(folder)} for m in "ab"]})
    return controller


async def beat(controller: Controller, *units: FakeUnit, times: int = 8) -> None:
    for _ in range(times):
        for unit in units:
            lease = await controller.heartbeat(unit.report())
            unit.progress()
            unit.obey(lease)


async def until_kept(folder: Path, name: str) -> None:
    """Until a successor would know the cordon of that name: it is written behind the Controller's back."""
    async with asyncio.timeout(30):
        while True:
            kept = kept_state("fleet", StateSection(folder=str(folder)), LivedClock())
            state = await asyncio.to_thread(kept.load)
            await asyncio.to_thread(kept.close)
            if state is not None and name in [c.name for c in state.cordons.entries]:
                return
            await asyncio.sleep(0.05)


def roomy(unit_id: str, models: int, node: str = "n") -> FakeUnit:
    return FakeUnit(unit_id, node=node, memory_bytes=4096 * 8192 + models * resident_bytes(SPEC) + 1000)


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ("p-aa1", (UNIT, "p-aa1")),
        ("p-ab", (UNIT, "p-ab2")),
        ("abc", (NODE, "abc1")),
        ("abd2", (NODE, "abd2")),
        ("q-1", (UNIT, "q-1")),
    ],
)
def test_find_place__name_or_its_beginning__is_the_unit_or_node(asked: str, place: tuple[CordonScope, str]) -> None:
    assert find_place(FLEET, asked) == place


def test_find_place__address_of_a_node__is_the_node() -> None:
    assert find_place(fleet_status(FakeUnit("10.0.0.7", node="abc1")), "10.0.0.7") == (UNIT, "10.0.0.7")
    status = fleet_status(FakeUnit("u", node="abc1"))
    elsewhere = replace(status.units[0], report=replace(status.units[0].report, endpoint="10.0.0.7:4711"))

    assert find_place(replace(status, units=(elsewhere,)), "10.0.0.7") == (NODE, "abc1")


def test_find_place__node_without_units_that_has_a_cordon__is_found() -> None:
    gone = replace(FLEET, cordons=(Cordon(scope=NODE, name="ffff"),))

    assert find_place(gone, "ff") == (NODE, "ffff")


@pytest.mark.parametrize(("asked", "said"), [("zz", "nodes abc1"), ("p-a", "p-aa1, p-ab2"), ("", "units p-aa1")])
def test_find_place__nothing_or_several__says_what_there_is(asked: str, said: str) -> None:
    with pytest.raises(PlaceNotFound, match=said):
        find_place(FLEET, asked)


def test_units_at__node__are_all_that_run_there() -> None:
    assert [u.report.unit_id for u in units_at(FLEET, (NODE, "abd2"))] == ["p-ab2", "q-1"]


async def test_controller__drain_that_the_rest_holds__is_accepted_and_empties_the_unit(tmp_path: Path) -> None:
    controller = await configured(fresh_controller(), tmp_path)
    units = [roomy("u1", 3), roomy("u2", 3)]
    await beat(controller, *units)

    homeless = await controller.cordon(Cordon(scope=UNIT, name="u1", drains=True))
    await beat(controller, *units)

    assert homeless == {}
    assert (await controller.status()).cordons == (Cordon(scope=UNIT, name="u1", drains=True),)
    assert (units[0].ready(), units[1].ready()) == (set(), {"a", "b"})


async def test_controller__drain_without_room_elsewhere__names_the_models_and_changes_nothing(tmp_path: Path) -> None:
    controller = await configured(fresh_controller(), tmp_path)
    units = [roomy("u1", 1), roomy("u2", 1)]
    await beat(controller, *units)
    (model,) = units[0].ready()

    homeless = await controller.cordon(Cordon(scope=UNIT, name="u1", drains=True))
    await beat(controller, *units)

    assert list(homeless) == [model]
    assert homeless[model]
    assert (await controller.status()).cordons == ()
    assert units[0].ready() == {model}


async def test_controller__killed_in_the_middle_of_a_drain__its_successor_goes_on_with_it(tmp_path: Path) -> None:
    first = await configured(fresh_controller(), tmp_path)
    units = [roomy("u1", 3), roomy("u2", 3)]
    await beat(first, *units)
    wanted = Cordon(scope=UNIT, name="u1", drains=True)
    await first.cordon(wanted)
    await until_kept(tmp_path, "u1")

    second = await configured(fresh_controller(), tmp_path)
    cordons = (await second.status()).cordons
    await beat(second, *units)

    assert cordons == (wanted,)
    assert (units[0].ready(), units[1].ready()) == (set(), {"a", "b"})


async def test_controller__uncordon__says_whether_there_was_a_cordon(tmp_path: Path) -> None:
    controller = await configured(fresh_controller(), tmp_path)
    await controller.cordon(Cordon(scope=NODE, name="n1"))

    assert await controller.uncordon(NODE, "n1")
    assert not await controller.uncordon(NODE, "n1")


def test_status__cordoned_and_drained_units__say_so() -> None:
    busy = FakeUnit("u1", node="n1", phases={"a": ModelPhase.READY})
    status = fleet_status(busy, FakeUnit("u2", node="n1"), FakeUnit("u3"))
    drained = Cordon(scope=NODE, name="n1", drains=True)
    cordons = (drained, drained, Cordon(scope=UNIT, name="u3"))
    units = tuple(replace(u, cordon=c) for u, c in zip(status.units, cordons, strict=True))
    status = replace(status, units=units, cordons=(drained,))

    told: Any = as_dict(status)

    assert [u["cordon"] for u in told["units"]] == ["draining", "drained", "cordoned"]
    assert told["cordons"] == [{"scope": "node", "name": "n1", "drains": True, "is_forced": False}]
    assert "unit u1 is draining, by its node n1" in list(problems(status))
    assert "unit u3 is cordoned" in list(problems(status))


def told_of(*units: FakeUnit) -> FleetStatus:
    return fleet_status(*units)


def test_drain__unit_that_nobody_tells_of_for_a_moment__counts_as_before_and_later_as_gone() -> None:
    unit = FakeUnit("u1", phases={"a": ModelPhase.READY, "b": ModelPhase.DRAINING})
    going = Drain((UNIT, "u1"), told_of(unit), 0.0)
    going.hear(told_of(), 5.0)
    silent = going.left()
    going.hear(told_of(), 30.0)

    assert silent == ("a on u1", "b on u1")
    assert going.left() == ()


def test_drain__models_that_sleep_or_failed__are_not_waited_for() -> None:
    unit = FakeUnit("u1", phases={"a": ModelPhase.FAILED, "b": ModelPhase.ASLEEP})

    assert Drain((UNIT, "u1"), told_of(unit), 0.0).left() == ()


def test_errors__of_a_drain__name_place_models_and_remedy() -> None:
    refused = str(DrainRefused(place="unit u1", homeless={"a": "20 GiB more"}))
    late = str(DrainTimedOut(place="unit u1", timeout_s=60, left=["a on u1"]))

    assert "unit u1" in refused
    assert "a: 20 GiB more" in refused
    assert "--force" in refused
    assert "a on u1" in late
    assert "uncordon" in late


def test_only_fleet__none_or_several__says_what_to_do(tmp_path: Path) -> None:
    def running(name: str, folder: Path, pid: int) -> Any:
        started = {"boot": this_boot(), "pid": pid, "started_s": process_started_s(pid)}
        return announced(folder, RunningFleet(name=name, url="u", address="a", auth_token="t", **started))

    with pytest.raises(FleetUnreachable, match="muxfleet up"):
        only_fleet(tmp_path)
    with running("one", tmp_path, os.getpid()):
        assert only_fleet(tmp_path).name == "one"
        with running("two", tmp_path, os.getppid()), pytest.raises(FleetNotNamed, match=r"is missing.*of one, two"):
            only_fleet(tmp_path)


async def test_node_cordon__control_loop_was_away_for_hours__is_still_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its units serve on meanwhile, and somebody may still work on the node."""
    first = await configured(fresh_controller(), tmp_path)
    units = roomy("u1", 2, node="n1"), roomy("u2", 2, node="n2")
    await beat(first, *units)
    await first.cordon(Cordon(scope=NODE, name="n1"))
    await until_kept(tmp_path, "n1")
    monkeypatch.setattr("deploy.serve.kept_state._STALE_S", -1.0)

    second = await configured(fresh_controller(), tmp_path)
    await beat(second, *units)

    assert [c.name for c in (await second.status()).cordons] == ["n1"]


@pytest.mark.parametrize("was_led", [True, False])
async def test_cordon__control_loop_ends_before_it_has_settled__next_one_has_it(tmp_path: Path, was_led: bool) -> None:
    """Of a fresh one that has not heard of all units yet; what the one before it kept is not lost with that."""
    units = roomy("u1", 2, node="n1"), roomy("u2", 2, node="n2")
    if was_led:
        first = await configured(fresh_controller(), tmp_path)
        await beat(first, *units)
        await first.cordon(Cordon(scope=NODE, name="n1"))
        await until_kept(tmp_path, "n1")
    second = await configured(fresh_controller(), tmp_path)
    await second.cordon(Cordon(scope=NODE, name="n2"))
    await second.uncordon(NODE, "n1")
    second._state.close()

    third = await configured(fresh_controller(), tmp_path)
    started = [e["text"] for e in json.loads(await third.events(600.0)) if e["kind"] == "controller_started"]
    await beat(third, *units)

    assert [c.name for c in (await third.status()).cordons] == ["n2"]
    assert ("goes on" in started[-1]) is was_led
