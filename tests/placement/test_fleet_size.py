"""How many nodes a demand needs: figures worked out by hand, and what holds for any pools."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_cases import make_model, make_spec, make_unit

from placement.demand import ModelDemand
from placement.estimation.plan_estimate import FleetEstimate, ModelEstimate, ReplicaEstimate, UnitEstimate
from placement.estimation.problem_arrays import Estimator
from placement.estimation.throughput import Limit
from placement.problem import PlacementModel
from placement.scaling.elastic_pool import ElasticPool, FleetSize, SizeLimits
from placement.scaling.fleet_size import FleetSizing
from placement.scaling.predicted_attainment import predicted_attainment
from placement.solvers.memory_greedy import MemoryGreedySolver
from profiler.gpus.a100_80g import DEVICE as A100_80G
from profiler.gpus.l40s import DEVICE as L40S
from profiler.specs import DeviceSpec
from traces.timeliness import SloTarget

MANY_PER_S = 1e9  # so many requests that chance moves their number by nothing
DEVICES = {"a": A100_80G, "b": L40S, "spot-a": A100_80G}
SLO = SloTarget(ttft_s=1.0, tbt_s=0.05)


def found(headroom: float, *, meets_slo: bool = True) -> FleetEstimate:
    unit = UnitEstimate(
        unit_id="u",
        replicas=(ReplicaEstimate(model="m", rate_per_s=MANY_PER_S, served_per_s=0.0),),
        headroom=headroom,
        limit=Limit.TTFT,
        decode_sms=0,
        tbt_s=0.01,
        kv_share=0.1,
        weights_share=0.1,
        prefill_share=0.1,
        lane_headroom=headroom,
        queue=None,
    )
    model = ModelEstimate(model="m", rate_per_s=MANY_PER_S, served_per_s=0.0, replicas=1, meets_slo=meets_slo)
    return FleetEstimate(units=(unit,), models=(model,), gpus_used=1)


def attainment(estimate: FleetEstimate, uncertainty: float) -> float:
    demand = ModelDemand(model="m", rate_per_s=MANY_PER_S, prompt_tokens=100, output_tokens=10)
    return predicted_attainment(estimate, {"m": demand}, uncertainty=uncertainty)


def test_predicted_attainment__demand_is_sure__is_the_share_that_units_carry() -> None:
    assert attainment(found(0.5), 0.0) == pytest.approx(0.5, abs=1e-4)
    assert attainment(found(3.0), 0.0) == pytest.approx(1.0)


def test_predicted_attainment__demand_is_unsure__loses_what_comes_beyond_what_is_carried() -> None:
    """Of a log-normal f with mean 1, E[max(0, f - 1)] = 2 Phi(sigma / 2) - 1: 0.079 for sigma = 0.198."""
    assert attainment(found(1.0), 0.2) == pytest.approx(1 - 0.079, abs=0.004)
    assert attainment(found(2.0), 0.2) > 0.999


def test_predicted_attainment__targets_that_no_unit_meets__ask_for_no_node() -> None:
    assert attainment(found(0.5, meets_slo=False), 0.1) == 1.0


def pool(name: str, *, present: int = 1, most: int = 6, least: int = 0, cost: float = 1.0) -> ElasticPool:
    def node(number: int, device: DeviceSpec = DEVICES[name]) -> tuple:
        unit = make_unit(f"{name}/{number}", memory_mib=40_000, total_blocks=1_000_000, device=device)
        return (replace(unit, node=f"{name}-{number}"),)

    nodes = tuple(node(i) for i in range(present))
    return ElasticPool(name=name, least_nodes=least, most_nodes=most, nodes=nodes, like=node(0), cost_per_hour=cost)


def sizing(pools: list[ElasticPool], rate_per_s: float, *, slo: SloTarget = SLO, **limits: float) -> FleetSizing:
    spec = make_spec(num_layers=32, num_kv_heads=8, head_dim=128, hidden_size=2048)
    model: PlacementModel = make_model("m", spec=spec, rate_per_s=rate_per_s, max_replicas=32, tokens=1600, slo=slo)
    estimator = Estimator()
    return FleetSizing(
        pools=pools,
        models=[model],
        limits=SizeLimits(**limits),
        solver=MemoryGreedySolver(),
        estimator=estimator,
    )


def one_node_carries() -> float:
    """Requests per second with which the target of 99 % is just kept, by halves."""
    low, high = 1.0, 4096.0
    for _ in range(14):
        middle = (low + high) / 2
        size = sizing([pool("a", most=1, least=1)], middle).find()
        low, high = (middle, high) if size.is_enough else (low, middle)
    return low


def test_find__demand_of_three_nodes__three_nodes() -> None:
    carried_per_s = one_node_carries()

    sizes = [sizing([pool("a", present=n)], 2.8 * carried_per_s).find().nodes for n in (1, 3, 6)]

    assert sizes == [{"a": 3}] * 3


def test_find__dear_and_cheap_nodes_alike__takes_the_cheap_ones() -> None:
    carried_per_s = one_node_carries()
    pools = [pool("a", present=4, cost=10.0), pool("b", present=1, cost=0.5)]

    size = sizing(pools, 0.3 * carried_per_s).find()

    assert size.is_enough
    assert size.nodes["a"] == 0
    assert size.cost_per_hour == 0.5 * size.nodes["b"]


def test_find__spot_nodes_like_the_dear_ones__are_searched_once_for_both() -> None:
    """A search takes nearly all of the time, and what it finds depends on no pool's name."""
    rate_per_s = 4.5 * one_node_carries()
    asked, of_both = [], sizing([pool("a", cost=3.0), pool("spot-a", most=3)], rate_per_s)

    class Noting(MemoryGreedySolver):
        def solve(self, units, models, current):
            asked.append(tuple(sorted(unit.unit_id for unit in units)))
            return super().solve(units, models, current)

    of_both.solver = Noting()
    size = of_both.find()

    assert (size.nodes, size.is_enough) == ({"a": 2, "spot-a": 3}, True)
    assert len({len(units) for units in asked}) == len(asked)


def test_find__budget_or_nodes_do_not_reach__says_so_and_stays_within() -> None:
    rate_per_s = 3.5 * one_node_carries()

    poor = sizing([pool("a")], rate_per_s, max_cost_per_hour=2.0).find()
    small = sizing([pool("a", most=2)], rate_per_s).find()
    few = sizing([pool("a")], rate_per_s, max_gpus=2).find()

    assert (poor.nodes, poor.is_enough) == ({"a": 2}, False)
    assert (small.nodes, small.is_enough) == ({"a": 2}, False)
    assert (few.nodes, few.is_enough) == ({"a": 2}, False)
    assert poor.attainment == small.attainment < 0.99


def test_find__only_the_dear_pool_meets_the_target__takes_it() -> None:
    """A decode step of 2.4 GB of weights takes A100 less than 6 ms, and L40S more."""
    size = sizing([pool("a", cost=9.0), pool("b", cost=1.0)], 1.0, slo=SloTarget(ttft_s=1.0, tbt_s=0.006)).find()

    assert (size.nodes, size.is_enough, size.left_out) == ({"a": 1, "b": 0}, True, ())


def test_find__no_pool_meets_the_target__says_of_which_model() -> None:
    size = sizing([pool("a"), pool("b")], 1.0, slo=SloTarget(ttft_s=1.0, tbt_s=1e-5)).find()

    assert size.left_out == ("m",)


def test_find__nodes_help_nothing__are_left_out() -> None:
    sure = sizing([pool("a")], 1e6)
    sure.models = [make_model("m", spec=sure.models[0].spec, rate_per_s=1e6, max_replicas=1, tokens=1600, slo=SLO)]

    size = sure.find()

    assert (size.nodes, size.is_enough) == ({"a": 1}, False)


@settings(max_examples=12, deadline=None)
@given(
    present=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    costs=st.tuples(st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([0.5, 1.0, 3.0])),
    rate_per_s=st.floats(1.0, 150.0),
    budget=st.sampled_from([None, 1.0, 4.0]),
)
def test_find__any_pools__within_bounds_and_no_node_too_many(
    present: tuple[int, int], costs: tuple[float, float], rate_per_s: float, budget: float | None
) -> None:
    pools = [pool(n, present=c, most=3, cost=k) for n, c, k in zip("ab", present, costs, strict=True)]
    limits = {} if budget is None else {"max_cost_per_hour": budget}

    size = sizing(pools, rate_per_s, **limits).find()

    assert all(0 <= count <= 3 for count in size.nodes.values())
    assert not size.is_enough or size.cost_per_hour <= (budget or float("inf"))
    assert not (size.is_enough and any(is_enough_with(pools, rate_per_s, fewer) for fewer in one_less(size)))


def one_less(size: FleetSize) -> list[dict[str, int]]:
    counts = dict(size.nodes)
    return [counts | {name: counts[name] - 1} for name in counts if counts[name]]


def is_enough_with(pools: list[ElasticPool], rate_per_s: float, nodes: dict[str, int]) -> bool:
    """Of exactly so many nodes."""
    fixed = [
        ElasticPool(name=p.name, least_nodes=nodes[p.name], most_nodes=nodes[p.name], nodes=p.nodes, like=p.like)
        for p in pools
    ]
    return sizing(fixed, rate_per_s).find().is_enough


def test_units__more_than_there_are__have_names_and_nodes_of_their_own() -> None:
    units = pool("a", present=2).units(4)

    assert len({u.unit_id for u in units}) == 4
    assert all(one.node != other.node for one, other in itertools.combinations(units[2:], 2))
