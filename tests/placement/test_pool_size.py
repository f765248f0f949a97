"""How many nodes a pool is to have: bounds kept, no thrash, schedules met, the cheapest node leaves."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placement_cases import make_model

from placement.plan import ModelPlacement, Plan, UnitPlan
from placement.scaling.demand_trend import DemandTrend
from placement.scaling.pool_size import PoolSize, ScalingRules, ScheduledFloor
from placement.scaling.victims import PoolNode, cheapest_to_empty

LOOK_S = 15.0
MONDAY_S = 4 * 86400.0
HOUR_S = 3600.0

rules = st.builds(
    ScalingRules,
    least_nodes=st.integers(1, 3),
    most_nodes=st.integers(3, 12),
    cooldown_s=st.sampled_from([0.0, 60.0, 300.0]),
    max_step=st.integers(1, 5),
)
asks = st.lists(st.integers(0, 20), min_size=1, max_size=80)


def sizes(size: PoolSize, asked: list[int], start_s: float = 0.0) -> list[int]:
    return [size.ask(nodes, 0, start_s + i * LOOK_S) for i, nodes in enumerate(asked)]


@given(rules, asks, st.integers(0, 20))
def test_pool_size__any_demand__stays_within_bounds_and_steps(
    found: ScalingRules, asked: list[int], first: int
) -> None:
    size = PoolSize(found, first)

    wanted = [size.wanted, *sizes(size, asked)]

    assert all(found.least_nodes <= n <= found.most_nodes for n in wanted)
    assert all(abs(after - before) <= found.max_step for before, after in itertools.pairwise(wanted))


@given(rules, asks)
def test_pool_size__any_demand__shrinks_once_in_a_cooldown_and_to_no_less_than_was_asked(
    found: ScalingRules, asked: list[int]
) -> None:
    size = PoolSize(found, found.most_nodes)
    wanted = [size.wanted, *sizes(size, asked)]
    looks = round(found.cooldown_s / LOOK_S)

    changes = [i for i, (before, after) in enumerate(itertools.pairwise(wanted)) if before != after]
    shrinks = [i for i in changes if wanted[i + 1] < wanted[i]]

    assert all(i - max([c for c in changes if c < i], default=-looks) >= looks for i in shrinks)
    for i in shrinks:
        lately = asked[max(0, i - looks) : i + 1]
        assert wanted[i + 1] >= min(max(lately), found.most_nodes)


@given(rules, st.integers(0, 20), st.integers(0, 20))
def test_pool_size__same_demand_for_long__is_what_it_needs(found: ScalingRules, first: int, asked: int) -> None:
    size = PoolSize(found, first)

    sizes(size, [asked] * (13 * (2 + round(found.cooldown_s / LOOK_S))))

    assert size.wanted == min(max(asked, found.least_nodes), found.most_nodes)


def test_pool_size__demand_that_flickers__grows_once_and_stays() -> None:
    size = PoolSize(ScalingRules(least_nodes=1, most_nodes=5, cooldown_s=60.0), 2)

    assert set(sizes(size, [3, 2] * 50)) == {3}


@pytest.mark.parametrize(
    ("unix_s", "ahead_s", "expected"),
    [
        (MONDAY_S + 7 * HOUR_S, 0.0, False),
        (MONDAY_S + 7 * HOUR_S, HOUR_S, True),  # nodes that are asked for now are there in time
        (MONDAY_S + 12 * HOUR_S, 0.0, True),
        (MONDAY_S + 18 * HOUR_S, 0.0, False),
        (MONDAY_S - 12 * HOUR_S, 0.0, False),  # a Sunday
    ],
)
def test_schedule__of_a_working_day__holds_from_the_lead_time_before_it(
    unix_s: float, ahead_s: float, expected: bool
) -> None:
    floor = ScheduledFloor(nodes=3, from_s=8 * HOUR_S, to_s=18 * HOUR_S, days=frozenset({0}))

    assert floor.touches(unix_s, ahead_s) is expected


def test_schedule__over_midnight__holds_on_the_next_day() -> None:
    floor = ScheduledFloor(nodes=3, from_s=22 * HOUR_S, to_s=2 * HOUR_S, days=frozenset({0}))

    assert floor.touches(MONDAY_S + 25 * HOUR_S, 0.0)
    assert not floor.touches(MONDAY_S + 1 * HOUR_S, 0.0)


def trend_of(rates_per_s: list[float]) -> float:
    """What is expected a minute after the last rate, as a multiple of it."""
    trend = DemandTrend()
    for i, rate_per_s in enumerate(rates_per_s):
        trend.note([make_model("m", rate_per_s=rate_per_s)], i * LOOK_S)
    (ahead,) = trend.ahead([make_model("m", rate_per_s=rates_per_s[-1])], 60.0)
    return ahead.demand.rate_per_s / rates_per_s[-1]


def test_trend__steady_growth__goes_on_and_nothing_else_is_predicted() -> None:
    assert trend_of([float(10 + i) for i in range(10)]) == pytest.approx(1 + 4 / 19)
    assert trend_of([float(20 - i) for i in range(10)]) == 1.0
    assert trend_of([10.0, 12.0] * 5) == 1.0
    assert trend_of([10.0, 20.0]) == 1.0


def placed(**models: str) -> Plan:
    return Plan(
        units=tuple(
            UnitPlan(unit_id=unit, models=tuple(ModelPlacement(model=m, quota_blocks=1) for m in held))
            for unit, held in models.items()
        )
    )


def node(unit_id: str, open_requests: int = 0) -> PoolNode:
    return PoolNode(node=f"n-{unit_id}", unit_ids=(unit_id,), open_requests=open_requests)


def test_victim__model_that_is_nowhere_else__costs_more_than_requests_under_way() -> None:
    plan = placed(u1="ab", u2="bc", u3="b")
    weights = {"a": 10, "b": 100, "c": 1}

    assert cheapest_to_empty([node("u1"), node("u2"), node("u3", 9)], 1, plan, weights) == (node("u3", 9),)
    assert cheapest_to_empty([node("u1"), node("u2")], 1, plan, weights) == (node("u2"),)
    assert cheapest_to_empty([node("u1"), node("u2")], 1, plan, weights, last=node("u2").node) == (node("u1"),)
    assert cheapest_to_empty([node("u2")], 1, plan, weights, last=node("u2").node) == (node("u2"),)


def test_victims__two_that_share_a_model__the_second_is_judged_without_the_first() -> None:
    plan = placed(u1="a", u2="a", u3="b")
    weights = {"a": 100, "b": 10}

    chosen = cheapest_to_empty([node("u1"), node("u2"), node("u3")], 2, plan, weights)

    assert chosen == (node("u1"), node("u3"))
    assert cheapest_to_empty([node("u3")], 1, plan, weights, others={"u1"}) == (node("u3"),)
