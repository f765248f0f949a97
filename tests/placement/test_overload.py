"""A running fleet that is asked for more: what the search does in what time, and for whom."""

from dataclasses import replace

from placement_cases import make_model, make_spec, make_unit

from placement.estimation.plan_estimate import FleetEstimate, ModelEstimate, estimate
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


def test_search__one_of_a_hundred_takes_much_in_an_overloaded_fleet__is_fed_as_well() -> None:
    """By the sum of requests alone it gets 16 % of what it asks for: its unit takes in all that is too much."""
    spec = make_spec(num_layers=8, num_kv_heads=8, head_dim=128, hidden_size=1024)
    units = [make_unit(f"u{i}", device=A100_80G, memory_mib=76 * 1024, total_blocks=2_000_000) for i in range(6)]
    cheap = [make_model(f"m{i:02}", spec=spec, rate_per_s=62.0, max_replicas=2) for i in range(99)]
    dear = make_model("dear", spec=spec, rate_per_s=1.0, tokens=4000, max_model_len=8192, max_replicas=2)

    plan = SearchSolver(rounds=60).solve(units, [*cheap, dear], None)

    found = estimate(units, [*cheap, dear], plan, Estimator())
    assert next(m for m in found.models if m.model == "dear").served_share > 0.4
    assert found.served_share > 0.48, "0.491 without it: who is fed costs the others less than 1 % of all"


def test_objective__one_of_a_hundred_starves__is_fed_for_few_requests_of_others() -> None:
    def estimated(shares: list[float]) -> FleetEstimate:
        models = tuple(
            ModelEstimate(model=f"m{i}", rate_per_s=10.0, served_per_s=10.0 * s, replicas=1, meets_slo=True)
            for i, s in enumerate(shares)
        )
        return FleetEstimate(units=(), models=models, gpus_used=1)

    starving = estimated([0.0] + [1.0] * 99)
    fed = estimated([0.5] + [0.99] * 99)
    dearly_fed = estimated([0.5] + [0.98] * 99)
    above_the_floor = estimated([0.9] + [0.99] * 99)

    assert fed.objective() > starving.objective() > dearly_fed.objective()
    assert estimated([0.6] + [1.0] * 99).objective() > above_the_floor.objective(), "there only requests count"
