"""Models that leave a unit sleep in its host memory, as far as that goes, and wake where they sleep."""

from dataclasses import replace

import pytest
from fleet_model import BLOCK_BYTES, SPEC, TOTAL_BLOCKS, FakeUnit, World, catalog, catalog_model

from deploy.commands.fleet_tables import as_dict
from deploy.control.control_rules import ControlRules
from deploy.control.host_memory_models import sleepers_of
from pdmux_actor.lease import ModelPhase
from placement.estimation.memory import resident_bytes
from placement.estimation.problem_arrays import Estimator
from placement.plan import ModelPlacement, Plan, UnitPlan
from placement.solvers.registry import SOLVERS

ONE = SPEC.weight_bytes
ONE_MODEL_BYTES = TOTAL_BLOCKS * BLOCK_BYTES + resident_bytes(SPEC)
EMPTY = Plan(units=())
RULES = ControlRules(min_residency_s=0.0)


def asleep_of(unit: FakeUnit) -> list[str]:
    assert unit.lease is not None
    return [a.model for a in unit.lease.asleep]


def sleepy_world(solver: str, *, host_memory_bytes: int, units: int = 1) -> World:
    """`z` and `y` give up their places after half a minute."""
    wanted = catalog("a", *(catalog_model(m, sleeps_after_s=30.0) for m in "yz"))
    world = World(wanted, expected_units=units, solver=SOLVERS[solver].make(Estimator(), lambda: False), rules=RULES)
    for _ in range(units):
        world.start_unit().host_memory_bytes = host_memory_bytes
    world.beat(20, asks={"y": 1, "z": 1})
    assert world.serving("z") != []
    return world


@pytest.mark.parametrize("solver", ["search", "memory_greedy"])
def test_sleep__nobody_asks__weights_stay_in_host_memory_and_a_request_wakes_them(solver: str) -> None:
    world = sleepy_world(solver, host_memory_bytes=2 * ONE)
    (unit,) = world.units.values()
    world.beat(100)
    assert asleep_of(unit) == ["y", "z"]
    assert unit.asleep == {"y", "z"}
    state = next(m for m in world.loop.status(world.now_s).models if m.model == "z")
    assert (state.asleep_on, state.phases, state.state) == (("u1",), (), "asleep")

    world.ask("z")
    world.beat(10)

    assert unit.ready() == {"a", "z"}
    assert unit.loaded[-1] == ("wake", "z")
    assert any("wake z on u1" in d.moves for d in world.loop.status(world.now_s).decisions)
    assert asleep_of(unit) == ["y"]


def test_sleep__host_memory_for_one__who_was_used_last_stays() -> None:
    world = sleepy_world("search", host_memory_bytes=2 * ONE - 1)
    (unit,) = world.units.values()
    world.beat(20, asks={"y": 1})
    world.beat(100)
    assert (asleep_of(unit), unit.asleep) == (["y"], {"y"})

    world.ask("z")
    world.beat(10)
    assert unit.loaded[-1] == ("load", "z")
    world.beat(100)

    assert (asleep_of(unit), unit.asleep) == (["z"], {"z"})


def test_sleep__no_host_memory__lease_names_nobody() -> None:
    world = sleepy_world("search", host_memory_bytes=0)
    (unit,) = world.units.values()
    world.beat(100)

    assert asleep_of(unit) == []
    assert world.loop.status(world.now_s).models[1].asleep_on == ()


@pytest.mark.parametrize("solver", ["search", "memory_greedy"])
def test_wake__units_that_are_equally_good__the_one_where_it_sleeps(solver: str) -> None:
    world = World(
        catalog(catalog_model("y", sleeps_after_s=30.0), catalog_model("z", sleeps_after_s=30.0)),
        expected_units=3,
        solver=SOLVERS[solver].make(Estimator(), lambda: False),
        rules=RULES,
    )
    for _ in range(3):
        world.start_unit(memory_bytes=ONE_MODEL_BYTES).host_memory_bytes = ONE
    world.beat(20, asks={"y": 1, "z": 1})
    home = {m: world.serving(m) for m in "yz"}
    world.beat(100)
    assert [u.unit_id for u in world.units.values() if u.asleep] == sorted([*home["y"], *home["z"]])

    for model in "zy":  # in the other order than they came in
        world.ask(model)
        world.beat(10)

    assert {m: world.serving(m) for m in "yz"} == home
    assert [how for u in world.units.values() for how, _ in u.loaded] == ["load", "wake", "load", "wake"]


def test_wake__control_loop_restarts__finds_who_sleeps() -> None:
    world = sleepy_world("search", host_memory_bytes=2 * ONE)
    (unit,) = world.units.values()
    world.beat(100)

    world.restart_control_loop()
    world.beat(20)

    assert (asleep_of(unit), unit.asleep) == (["y", "z"], {"y", "z"})


def test_wake__unit_restarts__nobody_sleeps_and_the_lease_says_so() -> None:
    world = sleepy_world("search", host_memory_bytes=2 * ONE)
    world.beat(100)
    world.kill_unit("u1")
    unit = world.start_unit()
    unit.host_memory_bytes = 2 * ONE
    world.beat(60)
    assert asleep_of(unit) == []

    world.ask("z")
    world.beat(10)

    assert unit.ready() == {"a", "z"}
    assert unit.loaded[-1] == ("load", "z")


def test_sleepers__unit_could_not_keep_one__it_is_named_no_more() -> None:
    unit = FakeUnit(unit_id="u", host_memory_bytes=2 * ONE, phases={"a": ModelPhase.DRAINING, "b": ModelPhase.FAILED})
    wanted = catalog("a", "b")

    named = sleepers_of(unit.report(), EMPTY, EMPTY, wanted, lambda model: 0.0)
    gone = sleepers_of(replace(unit.report(), models=()), EMPTY, EMPTY, wanted, lambda model: 0.0)

    assert [(a.model, a.quota_blocks) for a in named] == [("a", 0)]
    assert gone == ()


def test_sleepers__one_waits_to_wake_there__has_its_place_before_one_that_was_used_later_and_leaves() -> None:
    unit = FakeUnit(unit_id="u", host_memory_bytes=ONE, phases={"a": ModelPhase.DRAINING}, asleep={"b"})
    placed = (ModelPlacement(model="b", quota_blocks=1),)
    goal = Plan(units=(UnitPlan(unit_id="u", models=placed),))

    named = sleepers_of(unit.report(), EMPTY, goal, catalog("a", "b"), {"a": 2.0, "b": 1.0}.__getitem__)

    assert [a.model for a in named] == ["b"]


def test_sleepers__model_left_the_fleet_file__is_forgotten() -> None:
    unit = FakeUnit(unit_id="u", host_memory_bytes=2 * ONE, asleep={"a", "b"})

    named = sleepers_of(unit.report(), EMPTY, EMPTY, catalog("b"), {"b": 0.0}.__getitem__)

    assert [a.model for a in named] == ["b"]


def test_status__model_sleeps__says_where_how_large_and_how_far_from_ready() -> None:
    world = sleepy_world("search", host_memory_bytes=2 * ONE)
    world.beat(100)
    told = as_dict(world.loop.status(world.now_s))

    assert told["models"][2]["asleep_on"] == ["u1"]
    (z,) = [m for m in told["units"][0]["models"] if m["model"] == "z"]
    assert (z["phase"], z["host_bytes"], z["wake_s"]) == ("asleep", ONE, 0.1)
    assert told["units"][0]["host_memory_bytes"] == 2 * ONE


def test_explain__model_sleeps__says_where_and_that_a_request_wakes_it() -> None:
    world = sleepy_world("search", host_memory_bytes=2 * ONE)
    world.beat(100)

    told = world.loop.explain("z", world.now_s)

    assert told.asleep == {"u1": 0.1}
    assert told.homes == ()
    assert "the next request wakes it" in (told.unplaced or "")
