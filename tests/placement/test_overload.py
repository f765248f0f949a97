"""A running fleet that is asked for more: what the search does in what time, and for whom."""

from dataclasses import replace

from placement_cases import make_model, make_unit

from placement.estimation.plan_estimate import estimate
from placement.estimation.problem_arrays import Estimator
from placement.launch_limits import LaunchLimits
from placement.solvers.search import SearchSolver
from profiler.gpus.a100_80g import DEVICE as A100_80G


def test_search__model_starves_beside_a_neighbour_and_may_have_one_replica__neighbour_moves() -> None:
    """Of the whole demand that is next to nothing."""
    units = [make_unit(f"u{i}", device=A100_80G) for i in range(3)]
    alone = SearchSolver().solve(units[:1], [make_model("a")], None)
    most_per_s = estimate(units[:1], [make_model("a")], alone, Estimator()).units[0].headroom
    models = [make_model(m, rate_per_s=0.7 * most_per_s) for m in "ab"]
    together = SearchSolver().solve(units[:1], models, None)

    moved = SearchSolver(least_gain=0.9).solve(units, models, together)
    stays = SearchSolver(least_gain=0.9, least_model_gain=0.9).solve(units, models, together)

    assert moved.units_of("a") != moved.units_of("b")
    assert stays.units_of("a") == stays.units_of("b")


def test_estimate__engine_that_runs_fewer_sequences__carries_less() -> None:
    models = [make_model(rate_per_s=1.0)]
    units = [make_unit(device=A100_80G, memory_mib=4096, total_blocks=100_000)]
    few = [replace(units[0], launch_limits=LaunchLimits(sequences=4))]
    plan = SearchSolver().solve(units, models, None)

    headrooms = [estimate(of, models, plan, Estimator()).units[0].headroom for of in (units, few)]

    assert headrooms[0] > 2 * headrooms[1]


def test_search__running_fleet_is_overloaded_and_time_is_up__stays_as_it_is() -> None:
    """Every loop looks at the clock, those before the improvement too."""
    units = [make_unit(f"u{i}", device=A100_80G) for i in range(4)]
    before = SearchSolver().solve(units, [make_model(m, max_replicas=1) for m in "abcd"], None)
    alone = estimate(
        units[:1], [make_model("a")], SearchSolver().solve(units[:1], [make_model("a")], None), Estimator()
    )
    hot_per_s = 2 * alone.units[0].headroom
    models = [make_model(m, rate_per_s=hot_per_s if m == "a" else 1.0, max_replicas=3) for m in "abcd"]

    stopped = SearchSolver(is_time_up=lambda: True).solve(units, models, before)
    finished = SearchSolver().solve(units, models, before)

    assert all(stopped.units_of(m) == before.units_of(m) for m in "abcd")
    assert any(finished.units_of(m) != before.units_of(m) for m in "abcd")
