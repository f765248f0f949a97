"""What the planner would do if demand, targets or nodes were others."""

import time

import msgspec
import pytest
from fleet_model import World, catalog

from deploy.control.fleet_costs import FleetCosts
from deploy.control.planner import PlanAnswer, PlanTask, work_out
from deploy.inspection.plan_report import LookReport
from deploy.serve.console_topics import ConsoleTopics
from placement.errors import ModelUnknown
from placement.solvers.memory_greedy import MemoryGreedySolver
from router.what_if import OtherTargets, WhatIfChanges


class Fleet:
    """Two nodes of two units, and a planner that notes what it is asked."""

    def __init__(self) -> None:
        self.world = World(catalog("a", "b"), expected_units=4)
        self.world.now_s = time.monotonic()
        self.world.restart_control_loop()
        for node in ("n1", "n1", "n2", "n2"):
            self.world.start_unit(node=node)
        self.world.beat(8, asks={"a": 1})
        self.asked: PlanTask | None = None
        self.topics = ConsoleTopics(self.world.loop, self.plan)

    async def plan(self, task: PlanTask) -> PlanAnswer:
        self.asked = task
        return work_out(task, MemoryGreedySolver(), FleetCosts().estimator)

    async def what_if(self, **changes) -> tuple[LookReport, PlanTask]:
        told = await self.topics.what_if(WhatIfChanges(**changes))
        assert told is not None
        assert self.asked is not None
        return msgspec.json.decode(told, type=LookReport), self.asked


async def test_what_if__targets_are_others__are_planned_for_and_the_rest_stays() -> None:
    fleet = Fleet()
    before = {m.model: m.slo for m in fleet.world.loop.trial_task(None, time.monotonic()).needs.models}
    look, task = await fleet.what_if(rates={"b": 7.0}, targets={"a": OtherTargets(tbt_s=0.01)})

    models = {m.model: m for m in task.needs.models}
    assert models["a"].slo is not None
    assert before["a"] is not None
    assert (models["a"].slo.tbt_s, models["a"].slo.ttft_s) == (0.01, before["a"].ttft_s)
    assert models["b"].slo == before["b"]
    assert models["b"].demand.rate_per_s == 7.0
    assert look.why == "b at 7/s, a with TBT 0.01 s"


async def test_what_if__more_nodes__are_as_the_largest_and_can_be_moved_to() -> None:
    fleet = Fleet()
    _, task = await fleet.what_if(nodes={"p": 3})
    new = [u for u in task.needs.units if u.node == "p-new1"]
    assert [u.unit_id for u in new] == ["p-new1-1", "p-new1-2"]
    assert len(task.needs.units) == 6
    assert {(u.total_blocks, u.memory_bytes) for u in new} == {(4096, 2**30)}


async def test_what_if__fewer_nodes__the_one_with_least_on_it_goes_and_its_models_move() -> None:
    fleet = Fleet()
    goal = fleet.world.loop.trial_task(None, time.monotonic()).goal
    held = {u.unit_id: len(u.models) for u in goal.units}
    on_node = {"n1": held.get("u1", 0) + held.get("u2", 0), "n2": held.get("u3", 0) + held.get("u4", 0)}
    look, task = await fleet.what_if(nodes={"p": 1})

    kept = {u.unit_id for u in task.needs.units}
    (node,) = {u.node for u in task.needs.units}
    assert on_node[node] == max(on_node.values())
    assert sum(on_node.values()) == 2
    assert {m.unit for m in look.moves} <= kept
    assert look.share_then == 1.0


async def test_what_if__model_that_nobody_plans_for__is_unknown() -> None:
    fleet = Fleet()
    with pytest.raises(ModelUnknown):
        await fleet.what_if(targets={"c": OtherTargets(ttft_s=1.0)})
