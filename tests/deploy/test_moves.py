"""What the control loop moves, when, and how: in virtual time, with a solver that does as it is told."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from fleet_model import SPEC, FakeUnit, World, catalog, catalog_model
from hypothesis import given, settings

from deploy.control.control_rules import ControlRules
from pdmux_actor.lease import ModelPhase
from placement.estimation.memory import resident_bytes
from placement.launch_limits import LaunchLimits
from placement.plan import ModelPlacement, Plan, UnitPlan

ONE_MODEL = resident_bytes(SPEC)
POOL_BYTES = 4096 * 8192
AT_ONCE = ControlRules(replan_every_s=1.0, min_residency_s=0.0, min_gain=0.0, max_moves_per_min=1000)


class Told:
    """A solver that puts models where `homes` says, as far as the units are there; without it, all on every unit."""

    def __init__(self, **homes: str) -> None:
        self.homes: dict[str, tuple[str, ...]] = {m: tuple(units.split()) for m, units in homes.items()}
        self.calls = 0

    def solve(self, units, models, current) -> Plan:
        self.calls += 1
        known = {m.model for m in models}
        plans = []
        for unit in units:
            held = sorted(m for m, homes in self.homes.items() if unit.unit_id in homes and m in known)
            share = unit.total_blocks // max(1, len(held))
            placements = tuple(ModelPlacement(model=m, quota_blocks=share) for m in held)
            plans.append(UnitPlan(unit_id=unit.unit_id, models=placements))
        placed = {p.model for u in plans for p in u.models}
        return Plan(units=tuple(plans), unplaced={m.model: "told so" for m in models if m.model not in placed})


def room_for(models: int) -> int:
    """Memory of a unit."""
    return POOL_BYTES + models * ONE_MODEL + ONE_MODEL // 2


def world_of(solver: Told, *models: str, units: int = 2, rules: ControlRules = AT_ONCE, room: int = 8) -> World:
    world = World(catalog(*models), expected_units=units, solver=solver, rules=rules)
    for _ in range(units):
        world.start_unit(memory_bytes=room_for(room))
    world.beat(6)
    return world


def test_move__room_on_both_units__new_replica_is_ready_before_the_old_one_goes() -> None:
    solver = Told(a="u1", b="u2")
    world = world_of(solver, "a", "b")
    solver.homes = {"a": ("u2",), "b": ("u2",)}

    seen = []
    for _ in range(20):
        world.beat()
        seen.append(sorted(world.serving("a")))

    assert seen[-1] == ["u2"]
    assert ["u1", "u2"] in seen
    assert all(seen)


def test_move__no_room_beside__two_models_change_places_by_way_of_a_third_unit() -> None:
    solver = Told(a="u1", b="u2")
    world = world_of(solver, "a", "b", units=3, room=1)
    solver.homes = {"a": ("u2",), "b": ("u1",)}

    world.beat(30)

    assert (world.serving("a"), world.serving("b")) == (["u2"], ["u1"])


def test_move__target_does_not_load_it__stays_where_it_is_and_says_so() -> None:
    solver = Told(a="u1")
    world = World(catalog("a"), expected_units=2, solver=solver, rules=AT_ONCE)
    world.start_unit()
    world.start_unit(broken="a")
    world.beat(6)
    solver.homes = {"a": ("u2",)}

    for _ in range(6):
        world.beat()
        assert world.serving("a") == ["u1"]

    problem = world.loop.status(world.now_s).models[0].problem
    assert "does not load on u2" in (problem or "")


def test_move__replica_is_young__waits_for_its_residency() -> None:
    solver = Told(a="u1")
    world = world_of(solver, "a", rules=ControlRules(replan_every_s=1.0, min_residency_s=60.0, min_gain=0.0))
    solver.homes = {"a": ("u2",)}

    world.beat(60)
    before = sorted(world.serving("a"))
    world.beat(100)

    assert before == ["u1", "u2"]
    assert world.serving("a") == ["u2"]


def test_move__control_loop_restarted__replica_waits_for_its_residency_anew() -> None:
    solver = Told(a="u1")
    world = world_of(solver, "a", rules=ControlRules(replan_every_s=1.0, min_residency_s=60.0, min_gain=0.0))
    solver.homes = {"a": ("u2",)}

    world.restart_control_loop()
    world.beat(60)
    before = sorted(world.serving("a"))
    world.beat(100)

    assert before == ["u1", "u2"]
    assert world.serving("a") == ["u2"]


def test_move__budget_is_spent__the_rest_waits_for_the_next_minute() -> None:
    models = "abcdef"
    solver = Told(**dict.fromkeys(models, "u1"))
    rules = ControlRules(replan_every_s=1.0, min_residency_s=0.0, min_gain=0.0, max_moves_per_min=2)
    world = world_of(solver, *models, rules=rules)
    solver.homes = dict.fromkeys(models, ("u2",))

    world.beat(40)
    after_20_s = len(world.units["u2"].ready())
    world.beat(400)

    assert after_20_s == 2
    assert world.units["u2"].ready() == set(models)


@pytest.mark.parametrize("replan", ["shadow", "off"])
def test_demand__not_to_be_followed__moves_nothing(replan: str) -> None:
    solver = Told(a="u1")
    rules = ControlRules(replan=replan, replan_every_s=1.0, min_residency_s=0.0, min_gain=0.0)
    world = world_of(solver, "a", rules=rules)
    solver.homes = {"a": ("u2",)}

    world.beat(60)

    assert world.serving("a") == ["u1"]
    assert bool(world.decided("shadow")) is (replan == "shadow")


def test_demand__gain_is_too_small__is_kept_with_the_reason() -> None:
    solver = Told(a="u1")
    rules = ControlRules(replan_every_s=1.0, min_residency_s=0.0, min_gain=0.05)
    world = world_of(solver, "a", rules=rules)
    solver.homes = {"a": ("u2",)}

    world.beat(60)

    assert world.serving("a") == ["u1"]
    assert "not worth a move" in world.decided("kept")[0]


def test_demand__gateways_are_silent__last_good_plan_stays() -> None:
    solver = Told(a="u1")
    world = world_of(solver, "a")
    calls = solver.calls
    solver.homes = {"a": ("u2",)}
    for _ in range(200):
        world.now_s += 0.5
        for unit in world.units.values():
            unit.obey(world.loop.heartbeat(unit.report(), world.now_s))
            unit.progress()

    assert solver.calls <= calls + 15, "only until the last report was stale"
    assert world.loop.status(world.now_s).units

    world = world_of(solver := Told(a="u1"), "a")
    for _ in range(40):  # silence first, then another plan
        world.now_s += 0.5
        for unit in world.units.values():
            world.loop.heartbeat(unit.report(), world.now_s)
    solver.homes = {"a": ("u2",)}
    for _ in range(100):
        world.now_s += 0.5
        for unit in world.units.values():
            unit.obey(world.loop.heartbeat(unit.report(), world.now_s))
            unit.progress()
    assert world.serving("a") == ["u1"]


def test_plan__solver_asks_for_more_than_fits__is_not_followed_and_units_serve_on() -> None:
    solver = Told(a="u1", b="u2")
    world = world_of(solver, "a", "b", room=1)
    solver.homes = {"a": ("u1",), "b": ("u1",)}

    world.beat(60)

    assert (world.serving("a"), world.serving("b")) == (["u1"], ["u2"])


def test_plan__unit_tells_of_large_launches__room_is_kept_for_them() -> None:
    world = World(catalog("a", "b"), expected_units=1)
    world.start_unit(memory_bytes=room_for(2)).launch_limits = LaunchLimits(batch_tokens=8192, sequences=256)
    world.beat(6)

    problems = [m.problem for m in world.loop.status(world.now_s).models]
    assert all("for weights and workspace" in (p or "") for p in problems), "with small launches both would fit"


# ---- models that sleep ----


def test_sleep__nobody_asks__gives_up_its_place_and_a_held_request_wakes_it() -> None:
    world = World(catalog("a", catalog_model("z", sleeps_after_s=30.0)), expected_units=1)
    world.start_unit()
    world.beat(10)
    assert (world.serving("a"), world.serving("z")) == (["u1"], [])
    assert world.loop.status(world.now_s).models[1].is_asleep

    world.ask("z")
    world.waiting["z"] = 1
    world.beat(4)
    assert world.serving("z") == ["u1"]

    world.waiting["z"] = 0
    world.beat(50)
    assert world.serving("z") == ["u1"]
    world.beat(20)
    assert world.serving("z") == []
    assert world.serving("a") == ["u1"]


def test_sleep__no_room_for_both__who_is_asked_for_takes_the_place_of_who_is_not() -> None:
    sleepers = [catalog_model(m, sleeps_after_s=3600.0) for m in "yz"]
    world = World(catalog(*sleepers), expected_units=1, rules=ControlRules(min_residency_s=20.0, replan_every_s=1.0))
    world.start_unit(memory_bytes=room_for(1))
    world.beat(2)
    world.ask("y")
    world.beat(6)
    assert world.serving("y") == ["u1"]

    world.held["z"] = 1
    world.beat(10)

    assert (world.serving("y"), world.serving("z")) == ([], ["u1"])


def test_sleep__control_loop_restarts__a_model_in_use_stays() -> None:
    world = World(catalog(catalog_model("z", sleeps_after_s=30.0)), expected_units=1)
    world.start_unit()
    world.beat(4)
    world.ask("z")
    world.beat(6)

    world.restart_control_loop()
    for _ in range(40):
        world.beat()
        assert world.serving("z") == ["u1"]


# ---- what keeps dying ----


def die(world: World, unit: FakeUnit) -> None:
    unit.is_leaving, unit.failure = True, "the engine is gone"
    world.beat()
    world.kill_unit(unit.unit_id)


def test_deaths__units_of_one_place_keep_dying__it_is_taken_out_and_comes_back() -> None:
    world = World(catalog("a", "b"), expected_units=2)
    world.start_unit(node="good")
    for _ in range(3):
        bad = world.start_unit(node="bad")
        world.beat(8)
        die(world, bad)
        world.beat(40)
    again = world.start_unit(node="bad")
    world.beat(20)

    assert again.ready() == set()
    assert sorted(world.units["u1"].ready()) == ["a", "b"]
    (state,) = [u for u in world.loop.status(world.now_s).units if u.report.unit_id == again.unit_id]
    assert state.out_for_s > 0
    assert "keep dying" in world.decided("out")[0]

    world.kill_unit("u1")
    world.beat(60)
    assert again.ready() == {"a", "b"}, "the last one is never out"


def test_deaths__units_die_while_they_load_a_model__the_model_is_held_back() -> None:
    world = World(catalog("a", "poison"), expected_units=2)
    world.start_unit()
    world.beat()
    for _ in range(4):
        unit = world.start_unit()
        world.beat(3)
        unit.phases = {m: ModelPhase.LOADING if m == "poison" else p for m, p in unit.phases.items()}
        if "poison" in unit.phases:
            die(world, unit)
        world.beat(40)
        for u in world.units.values():  # it kills whoever loads it
            if "poison" in u.phases:
                u.phases["poison"] = ModelPhase.LOADING
                u.is_leaving, u.failure = True, "killed"
        world.beat()
        for unit_id in [i for i, u in world.units.items() if u.is_leaving]:
            world.kill_unit(unit_id)
        world.beat(40)

    states = {s.model: s for s in world.loop.status(world.now_s).models}
    if not world.units:
        world.start_unit()
        world.beat(10)
        states = {s.model: s for s in world.loop.status(world.now_s).models}
    assert "keep dying" in (states["poison"].problem or "")
    assert world.serving("a")


def test_silence__most_units_at_once__nobody_is_given_up_at_first() -> None:
    world = world_of(Told(a="u1", b="u2", c="u3"), "a", "b", "c", units=3)
    silent = frozenset({"u1", "u2"})

    world.beat(50, silent=silent)
    during = {u.unit_id: u.ready() for u in world.units.values()}
    world.beat(4)

    assert during == {"u1": {"a"}, "u2": {"b"}, "u3": {"c"}}
    assert {u.unit_id: u.ready() for u in world.units.values()} == during
    assert len(world.loop.status(world.now_s).units) == 3


def test_move__wanted_back_where_it_has_just_been_drained__other_replica_stays_until_it_is_ready_again() -> None:
    """What the unit last reported, that it has the model ready, is older than the lease that took it away."""
    solver = Told(a="u2", b="u2")
    world = world_of(solver, "a", "b", rules=replace(AT_ONCE, replan_every_s=0.5))
    solver.homes = {"a": ("u1",), "b": ("u2",)}
    while "a" in {m.model for m in world.units["u2"].lease.models}:
        world.beat()
    solver.homes = {"a": ("u2",), "b": ("u2",)}

    served = []
    for _ in range(10):
        world.beat()
        served.append(world.serving("a"))

    assert all(served)
    assert served[-1] == ["u2"]


# ---- any plan, any trouble ----

UNITS = ("u1", "u2", "u3")
HOMES = st.fixed_dictionaries({m: st.sets(st.sampled_from(UNITS), min_size=1, max_size=2) for m in "abc"})


@settings(max_examples=25, deadline=None)
@given(plans=st.lists(st.tuples(HOMES, st.integers(1, 12)), min_size=1, max_size=6), broken=st.sampled_from(["", "a"]))
def test_moves__any_plans_one_after_the_other__no_model_is_ever_unserved(plans, broken: str) -> None:
    solver = Told(a="u1", b="u2", c="u3")
    world = World(catalog("a", "b", "c"), expected_units=3, solver=solver, rules=AT_ONCE)
    for unit in UNITS:
        world.start_unit(memory_bytes=room_for(3), broken=broken if unit == "u3" else "")
    world.beat(8)
    for homes, beats in plans:
        solver.homes = {m: tuple(sorted(units)) for m, units in homes.items()}
        for _ in range(beats):
            world.beat()  # which checks quotas against the pool
            assert all(world.serving(m) for m in "abc")
    world.beat(30)

    for model, units in solver.homes.items():
        if model not in broken:
            assert set(world.serving(model)) == set(units)


def test_move__replica_has_to_stay__demand_is_followed_meanwhile() -> None:
    """A drain that waits for its time is no reason to leave another model without the replica that it needs."""
    rules = ControlRules(replan_every_s=1.0, min_residency_s=60.0, min_gain=0.0, max_moves_per_min=1000)
    solver = Told(a="u1", b="u2")
    world = world_of(solver, "a", "b", units=3, rules=rules)
    solver.homes = {"a": ("u3",), "b": ("u2",)}
    world.beat(10)
    solver.homes = {"a": ("u1",), "b": ("u2",)}  # the one on u3 is young
    world.beat(10)
    both = world.serving("a")
    solver.homes = {"a": ("u1",), "b": ("u2", "u1")}
    world.beat(10)

    assert both == ["u1", "u3"]
    assert world.serving("b") == ["u1", "u2"]
    assert "u3" in world.serving("a"), "it stays its time"
