"""The control loop decides how many nodes there shall be, and empties those that are not needed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fleet_model import World, catalog
from test_moves import AT_ONCE, Told, room_for

from deploy.control.flight_recorder import FlightRecorder
from deploy.control.planner import PlanAnswer, PlannerInPlace, PlanTask
from deploy.control.pool_scaling import PoolState, ScaledPool
from deploy.control.scaled_pools import scaled_pools, seasons_of
from deploy.fleet_file.settings import FleetFile, read_fleet_file
from deploy.serve.render import as_large_as_now, controller_config, serve_config
from placement.estimation.problem_arrays import Estimator
from placement.problem import PlacementModel
from placement.scaling.elastic_pool import Ceilings, FleetSize
from placement.scaling.pool_size import ScalingRules
from placement.scaling.seasonal_forecast import Season
from router.admission.demand_report import ModelAsked

FOUND = FleetSize(nodes={"p": 2}, attainment=0.995, cost_per_hour=1.0, is_enough=True)
FIXED = ScaledPool(rules=ScalingRules(least_nodes=2, most_nodes=2), units_per_node=1)
ASKS = {"a": 1, "b": 1}


class Sized(PlannerInPlace):
    """Finds the size that the test says."""

    def __init__(self, told: Told) -> None:
        super().__init__(told, Estimator())
        self.found = FOUND
        self.sized: Sequence[PlacementModel] = ()
        self._is_asked = False

    def ask(self, task: PlanTask) -> None:
        self._is_asked = task.size is not None
        self.sized = self.sized if task.size is None else task.size.models
        super().ask(replace(task, size=None))

    def answer(self) -> PlanAnswer | None:
        answer = super().answer()
        return replace(answer, size=self.found) if answer is not None and self._is_asked else answer


class Breathing:
    """Nodes n1 and n2 of one unit each, a on the first and b on the second; as many as three may be there."""

    def __init__(self, **rules: Any) -> None:
        self.told = Told(a="u1 u3", b="u2 u1")
        self.planner = Sized(self.told)
        settings = {"least_nodes": 1, "most_nodes": 3, "cooldown_s": 5.0} | rules
        scaling = {"p": ScaledPool(rules=ScalingRules(**settings), units_per_node=1)}
        self.recorder = FlightRecorder()
        self.world = World(
            catalog("a", "b"),
            expected_units=1,
            planner=self.planner,
            rules=AT_ONCE,
            recorder=self.recorder,
            scaling=scaling,
        )
        for node in ("n1", "n2"):
            self.world.start_unit(node=node, memory_bytes=room_for(8))
        self.beat(8)

    def beat(self, times: int) -> None:
        self.world.beat(times, asks=ASKS)

    def find(self, nodes: int, **found: Any) -> None:
        self.planner.found = replace(FOUND, nodes={"p": nodes}, **found)

    @property
    def pool(self) -> PoolState:
        (pool,) = self.world.loop.status(self.world.now_s).pools
        return pool


def test_pool__more_is_found_to_be_needed__more_is_wanted_and_the_newcomer_is_used() -> None:
    fleet = Breathing()
    assert (fleet.pool.wanted, fleet.pool.present, fleet.pool.leaving) == (2, 2, ())

    fleet.find(3)
    fleet.beat(4)
    assert fleet.pool.wanted == 3
    came = fleet.world.start_unit(node="n3", memory_bytes=room_for(8))
    fleet.beat(8)

    assert came.ready() == {"a"}
    assert fleet.pool.provision_s < 5.0  # measured: no longer what the fleet file says
    assert any("3 nodes instead of 2" in reason for reason in fleet.world.decided("scale"))


def test_pool__less_is_needed__cheapest_node_is_emptied_without_a_model_unserved_and_no_other() -> None:
    """b has another home on u1, so u2 is emptied at no cost; a would have to be loaded."""
    fleet = Breathing()
    fleet.find(1)

    for _ in range(30):
        fleet.beat(1)
        assert fleet.world.serving("a")
        assert fleet.world.serving("b")

    assert fleet.pool.wanted == 1
    assert (fleet.pool.leaving, fleet.pool.emptied) == (("u2",), ("u2",))
    assert fleet.world.units["u1"].ready() == {"a", "b"}
    assert not fleet.world.units["u2"].phases

    fleet.world.kill_unit("u2")
    fleet.beat(40)
    assert (fleet.pool.present, fleet.pool.leaving) == (1, ())
    assert (fleet.recorder.counts()["unit_left"], fleet.recorder.counts()["unit_lost"]) == (1, 0)


def test_pool__emptied_unit_is_replaced_before_the_number_falls__its_place_has_seen_no_death() -> None:
    """Serve starts another one at once; a place at which units seem to die would be left out when it is needed."""
    fleet = Breathing(most_nodes=2)
    fleet.find(1)
    fleet.beat(30)
    assert fleet.pool.emptied == ("u2",)

    fleet.world.kill_unit("u2")
    fleet.beat(3)
    fleet.world.start_unit(node="n2", memory_bytes=room_for(8))
    fleet.beat(8)

    assert (fleet.recorder.counts()["unit_left"], fleet.recorder.counts()["unit_lost"]) == (1, 0)


def test_pool__less_is_needed__the_control_loops_own_machine_stays() -> None:
    """Nobody takes away a machine on which something runs, so that it would be paid for and not used."""
    fleet = Breathing()
    fleet.told.homes["a"] = ("u1", "u2")
    fleet.world.loop.scaling.own_node = "n2"  # u2, else the cheapest to empty
    fleet.find(1)
    fleet.beat(30)

    assert (fleet.pool.leaving, fleet.pool.emptied) == (("u1",), ("u1",))
    assert fleet.world.units["u2"].ready() == {"a", "b"}


def test_pool__node_is_needed_again_before_it_is_gone__is_kept() -> None:
    fleet = Breathing()
    fleet.find(1)
    fleet.beat(30)
    assert fleet.pool.emptied == ("u2",)

    fleet.find(2)
    fleet.beat(8)

    assert fleet.pool.leaving == ()
    assert "b" in fleet.world.units["u2"].ready()


def test_pool__search_was_cut_short__nothing_leaves() -> None:
    fleet = Breathing()
    fleet.find(1, is_cut=True)

    fleet.beat(40)

    assert fleet.pool.wanted == 2


def test_pool__shadow__tells_and_empties_nothing() -> None:
    fleet = Breathing(shadow=True)
    fleet.find(1)

    fleet.beat(40)

    assert fleet.pool.leaving == ()
    assert fleet.world.decided("shadow")
    assert not fleet.world.decided("scale")


def test_pool__ray_takes_a_node__as_many_as_before_are_wanted() -> None:
    fleet = Breathing()
    fleet.find(2)
    fleet.world.loop.set_going_nodes(frozenset({"n2"}))
    fleet.beat(8)

    assert (fleet.pool.wanted, fleet.pool.present) == (2, 1)


@pytest.mark.parametrize(("ceilings", "most"), [(Ceilings(), 3), (Ceilings(max_gpus=3), 2)])
def test_pool__nodes_of_another_one_are_all_lost__grows_once_none_has_come_in_their_place(
    ceilings: Ceilings, most: int
) -> None:
    rules = ScalingRules(least_nodes=1, most_nodes=3, provision_s=20.0)
    told = Told(a="u1 u2", b="u1 u2")
    planner = Sized(told)
    world = World(
        catalog("a", "b"),
        expected_units=1,
        planner=planner,
        rules=replace(AT_ONCE, ceilings=ceilings),
        scaling={pool: ScaledPool(rules=rules, units_per_node=1) for pool in "pq"},
    )
    for pool in "pq":
        world.start_unit(pool=pool, node=f"n{pool}", memory_bytes=room_for(8))
    planner.found = replace(FOUND, nodes={"p": 1, "q": 1})
    world.beat(20, asks=ASKS)

    world.kill_unit("u2")
    world.beat(32, asks=ASKS)
    planner.found = replace(FOUND, nodes={"p": 3})
    sizes = []
    for _ in range(3):
        world.beat(30, asks=ASKS)
        sizes.append(world.loop.status(world.now_s).pools[0].wanted)

    assert sizes == [1, most, most], "another one may come within 20 s"


def test_pool__control_loop_is_replaced__goes_on_with_the_size() -> None:
    fleet = Breathing()
    fleet.find(3)
    fleet.beat(4)

    fleet.world.hand_over()
    fleet.beat(8)

    assert fleet.pool.wanted == 3


def test_serve_config__pool_that_follows_demand__keeps_its_size_within_the_new_bounds() -> None:
    pool = {"name": "p", "nodes": {"min": 2, "max": 4}}
    fleet = FleetFile.model_validate({"models": [{"id": "a", "source": "x"}], "pools": [pool]})
    config = serve_config(fleet)
    application = config["applications"][0]

    def units(running: int) -> int:
        now = as_large_as_now(config, fleet, {"units-p": running, "gateway": 9})
        return int(now["applications"][0]["deployments"][0]["num_replicas"])

    assert application["external_scaler_enabled"] is True
    assert application["deployments"][0]["num_replicas"] == 2
    assert [units(1), units(3), units(7)] == [2, 3, 4]


def test_pool__fleet_may_cost_no_more__does_not_grow_beyond_it_and_shrinks_all_the_same() -> None:
    fleet = Breathing()
    fleet.world.loop.scaling.ceilings = Ceilings(max_cost_per_hour=2.5)
    fleet.find(3)
    fleet.beat(8)
    assert fleet.pool.wanted == 2

    fleet.find(1)
    fleet.beat(30)
    assert fleet.pool.wanted == 1


def busy_at_all_times(rate_per_s: float) -> Season:
    return Season(season_s=86400.0, rates_per_s={"a": (rate_per_s,) * 96, "b": (0.0,) * 96}, seen=(2,) * 96)


def test_pool__more_is_forecast_than_comes__nodes_for_that_are_asked_for_and_it_is_told() -> None:
    fleet = Breathing(forecast=busy_at_all_times(40.0))
    fleet.find(3)
    fleet.beat(8)

    asked = {m.model: m.demand.rate_per_s for m in fleet.planner.sized}
    assert asked["a"] > 20.0  # a quiet morning so far, so less than on other days
    assert asked["b"] < 5.0
    told = fleet.world.loop.explain("a", fleet.world.now_s).forecast
    assert told is not None
    assert (told.rate_per_s, told.seasons) == (asked["a"], 2)
    assert fleet.pool.forecast_per_s == asked["a"]
    assert any("requests/s are forecast" in reason for reason in fleet.world.decided("scale"))


def test_pool__less_is_forecast_than_comes__what_comes_counts() -> None:
    fleet = Breathing(forecast=busy_at_all_times(0.01))
    fleet.beat(8)

    asked = {m.model: m.demand.rate_per_s for m in fleet.planner.sized}

    assert asked["a"] > 1.0


def test_pool__control_loop_is_replaced__goes_on_with_what_it_learned_of_the_season() -> None:
    fleet = Breathing(forecast=Season(season_s=240.0))
    fleet.beat(2 * 240)
    before = fleet.world.loop.explain("a", fleet.world.now_s).forecast
    assert before is not None

    fleet.world.hand_over()
    fleet.beat(8)

    after = fleet.world.loop.explain("a", fleet.world.now_s).forecast
    assert after is not None
    assert after.seasons == before.seasons == 1


def test_pool__no_pool_may_change_any_more__what_waits_is_not_looked_at() -> None:
    fleet = Breathing()
    scaling, now_s = fleet.world.loop.scaling, fleet.world.now_s
    many = {"a": ModelAsked(model="a", requests_total=0, prompt_tokens_total=0, output_tokens_total=0, waiting=1000)}
    assert scaling.alarm(lambda: many, now_s + 60) is not None

    scaling.follow({})

    assert scaling.alarm(lambda: many, now_s + 120) is None


@pytest.mark.parametrize("fixed", [{}, {"p": FIXED}])
def test_pool__may_not_change_any_more__units_that_were_leaving_stay(fixed: Mapping[str, ScaledPool]) -> None:
    fleet = Breathing()
    fleet.find(1)
    fleet.beat(30)
    assert fleet.pool.emptied == ("u2",)

    fleet.world.loop.scaling.follow(fixed)
    fleet.beat(8)

    assert "b" in fleet.world.units["u2"].ready()


def test_example__of_pools_that_breathe__has_three_nodes_on_working_days_and_learns_a_day() -> None:
    file = read_fleet_file(Path(__file__).parents[2] / "examples" / "scaling.yaml")
    pools = controller_config(file).pools
    assert pools is not None
    reserved, spot = (scaled_pools(pools, seasons_of(pools, file.models))[p].rules for p in ("reserved", "spot"))

    monday_s = 4 * 86400.0  # Unix time begins on a Thursday
    hours = (3, 8, 18.9, 20, 5 * 24 + 8)  # the last: Saturday morning
    assert [reserved.floor(monday_s + hour * 3600, 0.0) for hour in hours] == [1, 3, 3, 1, 1]
    assert reserved.forecast == Season(season_s=86400.0)
    assert spot.cost_per_hour < reserved.cost_per_hour
