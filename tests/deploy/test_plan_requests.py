"""A control loop whose planner takes its time: it answers heartbeats, and goes by what it gets in the end."""

from dataclasses import replace

from fleet_model import World, catalog, catalog_model
from test_moves import AT_ONCE, Told, room_for, world_of

from deploy.control.cordons import Cordons
from deploy.control.planner import PlanAnswer, PlannerInPlace, PlanTask, work_out
from placement.estimation.problem_arrays import Estimator
from placement.plan import Plan
from placement.problem import Solver
from placement.solvers.memory_greedy import MemoryGreedySolver


class SlowPlanner:
    """Answers when it is told to. `tasks`: all that it was asked."""

    def __init__(self) -> None:
        self.tasks: list[PlanTask] = []
        self._answer: PlanAnswer | None = None

    def ask(self, task: PlanTask) -> None:
        self.tasks.append(task)
        self._answer = None

    def answer(self) -> PlanAnswer | None:
        answer, self._answer = self._answer, None
        return answer

    def finish(self, solver: Solver | None = None) -> None:
        self._answer = work_out(self.tasks[-1], solver or MemoryGreedySolver(), Estimator())


def world(planner: SlowPlanner, *models: str, units: int = 1) -> World:
    made = World(catalog(*models), expected_units=units, planner=planner)
    for _ in range(units):
        made.start_unit()
    return made


def test_heartbeat__plan_is_being_worked_out__is_answered_with_the_lease_as_it_is() -> None:
    planner = SlowPlanner()
    made = world(planner, "a", "b")
    unit = made.units["u1"]

    made.beat(4)
    assert unit.lease is not None
    assert unit.lease.models == ()
    planner.finish()
    made.beat(2)

    assert unit.ready() == {"a", "b"}
    assert len(planner.tasks) == 1


def test_plan__unit_is_lost_meanwhile__is_worked_out_anew() -> None:
    planner = SlowPlanner()
    made = world(planner, "a", "b", units=2)
    made.beat()
    first = len(planner.tasks)
    made.units["u1"].is_leaving = True
    made.beat(2)

    assert len(planner.tasks) == first + 1
    assert [u.unit_id for u in planner.tasks[-1].needs.units] == ["u2"]
    planner.finish()
    made.beat(2)
    assert made.units["u2"].ready() == {"a", "b"}


def test_plan__world_changes_all_the_time__is_finished_all_the_same() -> None:
    planner = SlowPlanner()
    made = world(planner, "a", "b")
    for beat in range(12):  # two seconds are more than a plan takes, and the next unit comes sooner
        made.start_unit()
        made.beat(silent=frozenset(list(made.units)[:1]) if beat % 2 else frozenset())
        if beat == 8:
            planner.finish()

    assert any(unit.lease is not None and unit.lease.models for unit in made.units.values())


def test_planner__in_place__answers_once() -> None:
    slow = SlowPlanner()
    world(slow, "a").beat()
    planner = PlannerInPlace(MemoryGreedySolver(), Estimator())

    planner.ask(slow.tasks[-1])

    assert planner.answer() is not None
    assert planner.answer() is None


def test_plan__asked_for_before_a_shape_was_known__takes_the_model_from_no_unit() -> None:
    """The file named other weights, whose config.json has been read while the planner worked."""
    planner = SlowPlanner()
    made = world(planner, "a")
    made.beat()
    planner.finish()
    made.beat(4)
    (unit,) = made.units.values()
    assert unit.ready() == {"a"}

    made.want(catalog(catalog_model("a", source="/other", spec=None)))
    made.beat()
    assert planner.tasks[-1].needs.models == ()
    planner.finish()
    made.want(catalog(catalog_model("a", source="/other")))
    made.beat()
    assert "a" in {p.model for u in made.loop.status(made.now_s).plan.units for p in u.models}
    assert {a.model for a in unit.lease.models} == {"a"}


def test_plan__another_follows_before_a_unit_tells_what_it_loads__memory_holds_one_after_the_other() -> None:
    solver = Told(c="u1 u2")
    fleet = world_of(solver, "a", "c", units=1, room=1)
    joined = fleet.start_unit(memory_bytes=room_for(1))
    fleet.beat()
    assert joined.lease is not None
    assert [a.model for a in joined.lease.models] == ["c"]

    solver.homes = {"c": ("u1",), "a": ("u2",)}
    fleet.loop.set_cordons(Cordons(), "something has changed")
    fleet.beat(6)  # the fleet's model fails on a lease that names more than fits

    assert (fleet.serving("a"), fleet.serving("c")) == (["u2"], ["u1"])


class Modest(Told):
    """Leaves half of each pool to nobody."""

    def solve(self, units, models, current) -> Plan:
        return super().solve([replace(u, total_blocks=u.total_blocks // 2) for u in units], models, current)


def test_move__a_neighbour_falls_asleep_before_the_plan_knows__its_memory_counts_until_it_leaves() -> None:
    planner, solver = SlowPlanner(), Modest(a="u1", e="u1", c="u2")
    wanted = catalog("a", "c", catalog_model("e", sleeps_after_s=6.0))
    fleet = World(wanted, expected_units=2, planner=planner, rules=AT_ONCE)
    for _ in range(2):
        fleet.start_unit(memory_bytes=room_for(2))
    fleet.beat()
    fleet.ask("e")
    fleet.beat()
    planner.finish(solver)
    fleet.beat(6)
    assert (fleet.units["u1"].ready(), fleet.units["u2"].ready()) == ({"a", "e"}, {"c"})

    solver.homes |= {"a": ("u2",), "c": ("u1",)}
    fleet.units["u1"].running["a"] = 1  # until 30 s after it was told to go
    fleet.loop.set_cordons(Cordons(), "something has changed")
    fleet.beat()
    planner.finish(solver)
    fleet.beat(30)  # the fleet's model fails on a lease that names more than fits

    assert fleet.loop.status(fleet.now_s).models[2].is_asleep
    assert fleet.units["u1"].phases.keys() == {"a", "e"}
