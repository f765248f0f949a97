"""Units and nodes that are cordoned or drained, in virtual time."""

from dataclasses import replace

import pytest
from fleet_model import World, catalog, catalog_model
from test_moves import AT_ONCE, Told, room_for, world_of
from test_plan_requests import SlowPlanner

from deploy.control.control_rules import ControlRules
from deploy.control.cordons import Cordon, Cordons, CordonScope, LostCordons
from deploy.control.planner import work_out
from deploy.control.usable_units import Fleet
from pdmux_actor.lease import UnitReport
from placement.estimation.problem_arrays import Estimator

SLOW = ControlRules(replan_every_s=1.0, min_residency_s=600.0, min_gain=0.0, max_moves_per_min=1)


def cordon(name: str, **settings: bool) -> Cordon:
    return Cordon(scope=CordonScope.UNIT if name.startswith("u") else CordonScope.NODE, name=name, **settings)


def cordon_in(world: World, *cordons: Cordon) -> None:
    world.loop.set_cordons(Cordons(entries=cordons), "told so")


def states(world: World) -> dict[str, str | None]:
    return {u.report.unit_id: u.cordon_state for u in world.loop.status(world.now_s).units}


def test_cordons__one_more_on_the_same_unit__takes_the_place_of_the_first() -> None:
    cordons = Cordons().having(cordon("u1")).having(cordon("u1", drains=True)).having(cordon("n"))

    assert cordons.entries == (cordon("u1", drains=True), cordon("n"))
    assert cordons.without(CordonScope.UNIT, "u1").entries == (cordon("n"),)


def test_cordon__unit__keeps_what_it_has_and_takes_nothing_new() -> None:
    solver = Told(a="u1", b="u2")
    world = world_of(solver, "a", "b")
    cordon_in(world, cordon("u1"))
    solver.homes = {"a": ("u1", "u2"), "b": ("u1", "u2"), "c": ("u1", "u2")}
    world.want(catalog("a", "b", "c"))

    world.beat(20)

    assert world.units["u1"].ready() == {"a"}
    assert world.units["u2"].ready() == {"b", "c"}
    assert states(world) == {"u1": "cordoned", "u2": None}


def test_needs__of_more_models__units_are_not_asked_again_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat of a large fleet waits for it: models times units are too many."""
    asked: list[str] = []
    cordon_on = Fleet.cordon_on

    def counting(self: Fleet, report: UnitReport) -> Cordon | None:
        asked.append(report.unit_id)
        return cordon_on(self, report)

    monkeypatch.setattr(Fleet, "cordon_on", counting)
    counts = []
    for models in ("ab", "abcdef"):
        world = world_of(Told(**dict.fromkeys(models, "u1")), *models)
        world.beat(3)
        asked.clear()
        assert len(world.loop._needs(world.now_s).models) == len(models)
        counts.append(len(asked))

    assert counts[0] == counts[1]


def test_cordon__withdrawn__unit_takes_models_again() -> None:
    solver = Told(a="u1", b="u1")
    world = world_of(solver, "a")
    cordon_in(world, cordon("u1"))
    world.want(catalog("a", "b"))
    world.beat(6)
    before = world.serving("b")

    cordon_in(world)
    world.beat(6)

    assert before == []
    assert world.serving("b") == ["u1"]


def test_cordon__load_has_not_begun_there__is_off_and_the_fleet_is_led_on() -> None:
    solver = Told(a="u1", b="u1")
    world = world_of(solver, "a", "b", rules=replace(AT_ONCE, max_moves_per_min=1))
    solver.homes = {"a": ("u1", "u2"), "b": ("u1", "u2")}
    world.beat(10)
    assert world.units["u2"].ready() == {"a"}, "the other one waits for the next minute"

    cordon_in(world, cordon("u2"))
    world.beat(200)

    assert world.units["u2"].ready() == {"a"}
    assert world.units["u1"].ready() == {"a", "b"}


def test_cordon__comes_before_an_older_answer_of_the_planner__goal_names_each_model_once() -> None:
    slow = SlowPlanner()
    world = World(catalog("a", "b"), expected_units=2, planner=slow, rules=AT_ONCE)
    for _ in range(2):
        world.start_unit(memory_bytes=room_for(4))
    world.beat()
    solver = Told(a="u1 u2", b="u1")
    slow.finish(solver)
    world.beat(6)
    solver.homes["c"] = ("u2",)
    world.want(catalog("a", "b", "c"))
    world.beat(8)
    cordon_in(world, cordon("u2"))
    slow.finish(solver)

    world.beat(4)

    held = [[p.model for p in u.models] for u in world.loop.status(world.now_s).goal.units]
    assert held == [["a", "b"], ["a"]]


def test_cordon__unit_with_one_of_two_replicas__the_other_stays_planned() -> None:
    world = World(catalog(catalog_model("a", replicas=2)), expected_units=3)
    for _ in range(3):
        world.start_unit(memory_bytes=room_for(2))
    world.beat(6)
    homes = world.serving("a")
    cordon_in(world, cordon(homes[0]))

    world.beat(20)

    assert sorted(world.serving("a")) == sorted(homes)


def test_drain__unit__models_are_ready_elsewhere_before_they_leave_though_young_and_over_budget() -> None:
    solver = Told(**dict.fromkeys("abcd", "u1"))
    world = world_of(solver, *"abcd", rules=SLOW)
    solver.homes = dict.fromkeys("abcd", ("u1", "u2"))
    cordon_in(world, cordon("u1", drains=True))

    for _ in range(20):
        world.beat()
        assert all(world.serving(m) for m in "abcd")

    assert world.units["u1"].ready() == set()
    assert world.units["u2"].ready() == set("abcd")
    assert states(world) == {"u1": "drained", "u2": None}


def test_drain__node__all_its_units_are_emptied_and_one_that_comes_there_takes_nothing() -> None:
    world = World(catalog("a", "b", "c"), expected_units=3)
    for node in ("n1", "n1", "n2"):
        world.start_unit(memory_bytes=room_for(4), node=node)
    world.beat(6)
    cordon_in(world, cordon("n1", drains=True))
    world.beat(20)
    late = world.start_unit(memory_bytes=room_for(4), node="n1")

    world.beat(20)

    assert world.units["u3"].ready() == {"a", "b", "c"}
    assert late.ready() == set()
    assert states(world) == {"u1": "drained", "u2": "drained", "u3": None, "u4": "drained"}


def test_drain__rest_of_the_fleet_has_no_room__what_has_no_place_stays_and_is_served() -> None:
    world = world_of(Told(a="u1", b="u2"), "a", "b", room=1)
    cordon_in(world, cordon("u1", drains=True))

    for _ in range(40):
        world.beat()
        assert world.serving("a") == ["u1"]

    assert states(world)["u1"] == "draining"


def test_drain__forced__what_has_no_place_goes_too() -> None:
    world = world_of(Told(a="u1", b="u2"), "a", "b", room=1)
    cordon_in(world, cordon("u1", drains=True, is_forced=True))

    world.beat(20)

    assert world.serving("a") == []
    assert world.serving("b") == ["u2"]
    assert states(world)["u1"] == "drained"


def test_drain__target_does_not_load_it__stays_on_the_drained_unit() -> None:
    solver = Told(a="u1")
    world = World(catalog("a"), expected_units=2, solver=solver, rules=AT_ONCE)
    world.start_unit()
    world.start_unit(broken="a")
    world.beat(6)
    solver.homes = {"a": ("u1", "u2")}
    cordon_in(world, cordon("u1", drains=True))

    for _ in range(40):
        world.beat()
        assert world.serving("a") == ["u1"]


def test_drain__control_loop_restarts_in_the_middle__goes_on_with_the_cordons_that_were_kept() -> None:
    solver = Told(**dict.fromkeys("ab", "u1"))
    world = world_of(solver, *"ab", rules=SLOW)
    solver.homes = dict.fromkeys("ab", ("u1", "u2"))
    cordon_in(world, cordon("u1", drains=True))
    world.beat()
    kept = world.loop.cordons
    world.restart_control_loop()
    world.loop.set_cordons(kept, "kept")

    for _ in range(20):
        world.beat()
        assert all(world.serving(m) for m in "ab")

    assert world.units["u2"].ready() == {"a", "b"}
    assert states(world)["u1"] == "drained"


def test_drain__every_unit__all_is_served_where_it_is() -> None:
    world = world_of(Told(a="u1", b="u2"), "a", "b")
    cordon_in(world, cordon("u1", drains=True), cordon("u2", drains=True))

    world.beat(40)

    assert (world.serving("a"), world.serving("b")) == (["u1"], ["u2"])


def test_going_nodes__told_by_ray__are_drained_and_used_again_when_they_stay() -> None:
    world = World(catalog("a", "b"), expected_units=2)
    for node in ("n1", "n2"):
        world.start_unit(memory_bytes=room_for(4), node=node)
    world.beat(6)
    world.loop.set_going_nodes(frozenset({"n1"}))
    world.beat(10)
    while_going = (world.units["u1"].ready(), world.units["u2"].ready(), states(world)["u1"])
    world.loop.set_going_nodes(frozenset())
    world.want(catalog("a", "b", "c"))

    world.beat(10)

    assert while_going == (set(), {"a", "b"}, "drained")
    assert states(world)["u1"] is None
    assert world.serving("c") == ["u1"]


@pytest.mark.parametrize(("room", "homeless"), [(1, {"a"}), (4, set())])
def test_trial_task__solved__says_which_models_the_rest_cannot_hold_and_changes_nothing(
    room: int, homeless: set[str]
) -> None:
    world = World(catalog("a", "b"), expected_units=2)
    for _ in range(2):
        world.start_unit(memory_bytes=room_for(room))
    world.beat(6)
    (unit_id,) = world.serving("a")
    wanted = cordon(unit_id, drains=True)

    task = world.loop.trial_task(wanted, world.now_s)
    found = work_out(task, world.solver, Estimator()).solution.plan

    assert set(world.loop.homeless_after(wanted, found)) == homeless
    assert all(world.loop.homeless_after(wanted, found).values())
    assert states(world) == {"u1": None, "u2": None}


def drained_world() -> World:
    """Returns a fleet whose models would rather be on u2, which is drained."""
    solver = Told(a="u1", b="u2")
    world = world_of(solver, "a", "b")
    solver.homes = dict.fromkeys("ab", ("u2", "u1"))
    cordon_in(world, cordon("u2", drains=True))
    world.beat(12)
    return world


def test_drain__unit_out_of_reach_until_it_is_given_up__is_drained_when_it_is_back() -> None:
    """As behind a switch that restarts while somebody works there."""
    world = drained_world()
    assert states(world) == {"u1": None, "u2": "drained"}

    world.beat(40, silent=frozenset({"u2"}))
    assert states(world) == {"u1": None}
    world.beat(12)

    assert states(world) == {"u1": None, "u2": "drained"}
    assert world.units["u2"].ready() == set()


def test_drain__control_loop_restarts_while_the_unit_is_given_up__is_drained_when_it_is_back() -> None:
    world = drained_world()
    world.beat(40, silent=frozenset({"u2"}))
    assert states(world) == {"u1": None}

    world.hand_over()
    world.beat(40, silent=frozenset({"u2"}))
    world.hand_over()
    world.beat(12)

    assert states(world) == {"u1": None, "u2": "drained"}


def test_cordon__of_a_unit_that_went_while_the_control_loop_was_away__is_forgotten() -> None:
    world = world_of(Told(a="u1"), "a")
    cordon_in(world, cordon("u2"), cordon("n"))
    world.beat(4)
    world.kill_unit("u2")

    world.hand_over()
    world.beat(60)

    assert world.loop.cordons.entries == (cordon("n"),)


def test_lost_cordons__unit_back_after_a_long_time_or_twice__has_none() -> None:
    lost = LostCordons()
    lost.note([cordon("u1"), cordon("u2")], now_s=0.0)
    lost.note([], now_s=500.0)

    assert lost.back("u1", now_s=599.0) == cordon("u1")
    assert lost.back("u1", now_s=599.0) is None
    assert lost.back("u2", now_s=700.0) is None
    assert lost.back("u3", now_s=0.0) is None


def test_cordon__of_a_unit_that_is_gone__is_forgotten() -> None:
    world = world_of(Told(a="u1"), "a")
    cordon_in(world, cordon("u2"), cordon("n"))
    world.kill_unit("u2")

    world.beat(40)

    assert world.loop.cordons.entries == (cordon("n"),)
