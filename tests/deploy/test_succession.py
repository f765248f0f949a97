"""A control loop dies and another goes on where it ended: it plans, moves and forgets nothing."""

import pytest
from fleet_model import FakeUnit, World, catalog, catalog_model

from deploy.control.control_rules import ControlRules, ControlTiming
from deploy.control.planner import PlannerInPlace, PlanTask
from placement.estimation.problem_arrays import Estimator
from placement.solvers.memory_greedy import MemoryGreedySolver

TIMING = ControlTiming()
RULES = ControlRules()


class CountingPlanner(PlannerInPlace):
    asked = 0

    def ask(self, task: PlanTask) -> None:
        self.asked += 1
        super().ask(task)


def places(world: World) -> dict[str, set[str]]:
    return {u.unit_id: u.ready() for u in world.units.values()}


def settled(*models: str, units: int = 2) -> World:
    world = World(catalog(*models), expected_units=units, planner=CountingPlanner(MemoryGreedySolver(), Estimator()))
    for _ in range(units):
        world.start_unit()
    world.beat(20)
    return world


def dies_and_is_replaced(world: World, unit: FakeUnit) -> FakeUnit:
    unit.is_leaving, unit.failure = True, "died"
    world.beat(1)
    world.kill_unit(unit.unit_id)
    world.beat(int(TIMING.farewell_s / 0.5) + 3)
    following = world.start_unit(node=unit.node)
    world.beat(2)
    return following


def test_successor__same_units_and_fleet_file__neither_plans_nor_moves() -> None:
    world = settled("a", "b", "c")
    before, loads = places(world), [list(u.loaded) for u in world.units.values()]
    planner = world.planner
    assert planner.asked

    planner.asked = 0
    world.hand_over()
    for _ in range(20):
        world.beat()
        assert places(world) == before

    assert planner.asked == 0
    assert [list(u.loaded) for u in world.units.values()] == loads


def test_successor__demand__is_what_was_learned() -> None:
    world = settled("a", "b")
    world.beat(200, asks={"a": 4})
    learned = {m.model: m.rate_per_s for m in world.loop.status(world.now_s).models}
    assert learned["a"] > 5

    world.hand_over()

    told = {m.model: m.rate_per_s for m in world.loop.status(world.now_s).models}
    assert told == pytest.approx(learned)


def test_successor__no_traffic_while_it_was_away__sees_no_jump() -> None:
    world = settled("a", "b")
    world.beat(200, asks={"a": 4})

    world.hand_over(after_s=30.0)
    world.beat(40, asks={"a": 4})

    told = {m.model: m.rate_per_s for m in world.loop.status(world.now_s).models}
    assert 6 < told["a"] < 10


def test_successor__residency__goes_on_counting() -> None:
    world = settled("a", "b")
    kept = {(r.unit_id, r.model): r.placed_s for r in world.loop.state(world.now_s).replicas}
    assert kept

    world.hand_over()
    world.beat(20)

    again = {(r.unit_id, r.model): r.placed_s for r in world.loop.state(world.now_s).replicas}
    assert again == pytest.approx(kept)


def test_successor__unit_died_meanwhile__its_models_go_elsewhere() -> None:
    world = settled("a", "b")
    gone = world.serving("a")[0]
    world.kill_unit(gone)

    world.hand_over()
    world.beat(int(TIMING.settle_s / 0.5) + 10)

    assert world.serving("a")
    assert any("did not come back" in reason for reason in world.decided("plan"))


def test_successor__new_unit_came_meanwhile__is_planned_for() -> None:
    world = World(catalog(catalog_model("a", replicas=2)), expected_units=1)
    world.start_unit()
    world.beat(10)

    world.hand_over()
    world.start_unit()
    world.beat(20)

    assert len(world.serving("a")) == 2


def test_successor__fleet_file_changed_meanwhile__is_followed() -> None:
    world = settled("a", "b")
    world._catalog = catalog("a", "b", "c")

    world.hand_over()
    world.beat(20)

    assert world.serving("c")


def test_successor__move_under_way__is_finished() -> None:
    world = settled("a")
    world.want(catalog("a", "b"))
    world.beat()

    world.hand_over(after_s=0.5)
    world.beat(20)

    assert world.serving("a")
    assert world.serving("b")


def test_successor__model_asleep__stays_asleep_until_somebody_asks() -> None:
    world = World(catalog(catalog_model("a"), catalog_model("b", sleeps_after_s=60)), expected_units=1)
    unit = world.start_unit()
    world.beat(400)
    assert unit.ready() == {"a"}

    world.hand_over()
    world.beat(20)
    assert unit.ready() == {"a"}
    world.ask("b")
    world.beat(6)

    assert unit.ready() == {"a", "b"}


def test_successor__model_used_a_while_ago__falls_asleep_when_it_would_have() -> None:
    world = World(catalog(catalog_model("a"), catalog_model("b", sleeps_after_s=60)), expected_units=1)
    unit = world.start_unit()
    world.beat(20)
    world.beat(1, asks={"b": 1})
    world.beat(2)
    assert "b" in unit.ready()
    world.beat(80)

    world.hand_over()
    world.beat(60)

    assert unit.ready() == {"a"}


def test_successor__place_whose_units_keep_dying__stays_out() -> None:
    world = World(catalog("a", "b"), expected_units=2)
    world.start_unit(node="good")
    bad = world.start_unit(node="bad")
    world.beat(10)
    for _ in range(RULES.max_deaths):
        bad = dies_and_is_replaced(world, bad)
    assert world.loop.status(world.now_s).units[-1].out_for_s > 0

    world.hand_over()
    world.beat(2)

    out = {u.report.unit_id: u.out_for_s for u in world.loop.status(world.now_s).units}
    assert out[bad.unit_id] > 0


def test_successor__unit_died_with_the_control_loop__the_next_one_has_its_place_and_its_deaths() -> None:
    """As where memory runs out on a machine that runs both."""
    world = World(catalog("a", "b"), expected_units=2)
    world.start_unit(node="good")
    bad = world.start_unit(node="bad")
    world.beat(10)
    for _ in range(RULES.max_deaths - 1):
        bad = dies_and_is_replaced(world, bad)
    world.kill_unit(bad.unit_id)
    world.hand_over()
    bad = world.start_unit(node="bad")
    world.beat(4)

    bad = dies_and_is_replaced(world, bad)

    out = {u.report.unit_id: u.out_for_s for u in world.loop.status(world.now_s).units}
    assert out[bad.unit_id] > 0


def test_successor__decisions__are_told_with_their_age() -> None:
    world = settled("a")
    before = world.loop.status(world.now_s).decisions

    world.hand_over(after_s=10.0)
    after = world.loop.status(world.now_s).decisions

    assert [d.reason for d in after] == [d.reason for d in before]
    assert [d.seconds_ago for d in after] == pytest.approx([d.seconds_ago + 10.0 for d in before])


def test_state__before_the_loop_settled__is_none_so_that_half_a_fleet_replaces_no_whole() -> None:
    world = World(catalog("a"), expected_units=2)
    world.start_unit()
    world.beat(2)

    assert world.loop.state(world.now_s) is None
