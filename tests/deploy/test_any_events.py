"""Whatever happens to a fleet, and in whatever order: its control loop answers, and leases name what has room."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from fleet_model import SPEC, World, catalog, catalog_model
from test_moves import room_for

from deploy.control.control_rules import ControlRules
from deploy.control.cordons import Cordon, Cordons, CordonScope
from deploy.control.planner import PlanAnswer, PlanTask, work_out
from deploy.fleet_file.model_catalog import Catalog
from placement.estimation.problem_arrays import Estimator
from placement.solvers.memory_greedy import MemoryGreedySolver

SPECS = {model: replace(SPEC, num_layers=8) if model in "cf" else SPEC for model in "abcdef"}
NODES = ("n1", "n2", "n3")


class LatePlanner:
    """Answers some calls later, for a demand that it draws: plans differ."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._task: PlanTask | None = None
        self._calls = 0

    def ask(self, task: PlanTask) -> None:
        self._task, self._calls = task, self._draw.randint(1, 6)

    def answer(self) -> PlanAnswer | None:
        self._calls -= 1
        if self._task is None or self._calls > 0:
            return None
        task, self._task = self._task, None
        models = tuple(m.at_rate(10 * self._draw.random()) for m in task.needs.models)
        task = replace(task, needs=replace(task.needs, models=models))
        return work_out(task, MemoryGreedySolver(), Estimator())


class Events:
    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        rules = ControlRules(
            replan_every_s=1.0,
            min_residency_s=draw.choice([0.0, 3.0, 60.0]),
            min_gain=0.0,
            max_moves_per_min=draw.choice([1, 1000]),
            out_s=draw.choice([5.0, 300.0]),
        )
        self.world = World(self.models(), expected_units=1, planner=LatePlanner(draw), rules=rules)
        self.silent: frozenset[str] = frozenset()

    def models(self) -> Catalog:
        def one(name: str):
            if self.draw.random() < 0.5:
                return catalog_model(name, spec=SPECS[name], sleeps_after_s=self.draw.choice([1.0, 5.0, 300.0]))
            replicas = self.draw.randint(1, 2)
            return catalog_model(name, spec=SPECS[name], replicas=replicas, max_replicas=replicas + 1)

        return catalog(*map(one, self.draw.sample("abcdef", self.draw.randint(1, 6))))

    def unit(self) -> str:
        return self.draw.choice([*self.world.units, "u1"])

    def start(self) -> None:
        if len(self.world.units) < 6:
            memory_bytes, broken = room_for(self.draw.randint(1, 3)), self.draw.choice(["", "", "a", "bc"])
            unit = self.world.start_unit(memory_bytes=memory_bytes, node=self.draw.choice(NODES), broken=broken)
            unit.load_s = self.draw.choice([0.5, 3.0, 8.0])
            unit.host_memory_bytes = self.draw.choice([0, 8 * SPEC.weight_bytes])

    def cordon(self) -> None:
        scope = self.draw.choice([CordonScope.UNIT, CordonScope.NODE])
        name = self.unit() if scope is CordonScope.UNIT else self.draw.choice(NODES)
        one = Cordon(scope=scope, name=name, drains=self.draw.random() < 0.5, is_forced=self.draw.random() < 0.3)
        self.world.loop.set_cordons(Cordons(entries=(one,) if self.draw.random() < 0.7 else ()), "told so")

    def hand_over(self) -> None:
        if self.world.loop.state(self.world.now_s) is None:
            self.world.restart_control_loop()
        else:
            self.world.hand_over(after_s=self.draw.choice([0.5, 3.0, 20.0]))

    def leave(self) -> None:
        if (unit := self.world.units.get(self.unit())) is not None:
            unit.wants_to_leave = True

    def run_requests(self) -> None:
        for unit in self.world.units.values():
            unit.running = {m: self.draw.randint(0, 1) for m in unit.phases}

    def fall_silent(self) -> None:
        self.silent = frozenset(u for u in self.world.units if self.draw.random() < 0.3)

    def hold_requests(self) -> None:
        self.world.held = {m: self.draw.choice([0, 1, 3]) for m in SPECS}

    def happen(self) -> None:
        kinds: Mapping[Callable[[], object], int] = {
            self.start: 2,
            self.cordon: 2,
            self.hand_over: 1,
            self.leave: 1,
            self.run_requests: 2,
            self.fall_silent: 2,
            self.hold_requests: 3,
            lambda: self.world.units.pop(self.unit(), None): 1,
            lambda: self.world.want(self.models()): 2,
            lambda: self.world.loop.set_going_nodes(frozenset(self.draw.sample(NODES, self.draw.randint(0, 1)))): 1,
        }
        self.draw.choices([*kinds], [*kinds.values()])[0]()


@pytest.mark.parametrize("seed", range(12))
def test_control_loop__any_events__answers_and_leases_name_what_has_room(seed: int) -> None:
    events = Events(seed)
    world = events.world
    events.start()
    for _ in range(40):
        events.happen()
        world.ask(events.draw.choice([m.id for m in world._catalog.models]), 3)
        world.beat(events.draw.choice([1, 1, 2, 5]), silent=events.silent)  # fails on a lease that names more than fits
        world.loop.fleet_view(world.now_s)
        status = world.loop.status(world.now_s)
        assert {u.report.unit_id for u in status.units} >= world.units.keys() - events.silent
