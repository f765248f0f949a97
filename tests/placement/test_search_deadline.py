"""A search in a large fleet: it looks at the clock again and again, and does nothing where nothing is to be gained."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from placement_cases import make_model, make_spec, make_unit

from placement.estimation.quotas import QuotaClaim
from placement.estimation.throughput import Floats, KindCosts
from placement.packing.packing import Packing
from placement.packing.packing_objective import RoutedService
from placement.plan import UnitCapacity
from placement.problem import PlacementModel
from placement.solvers.search import SearchSolver
from profiler.gpus.a100_80g import DEVICE as A100_80G

_MOST_AT_ONCE, _MOST_AFTER = 150, 500  # evaluations of units between two looks at the clock, and once time is up


@dataclass(eq=False)
class Work:
    """`longest`: the most evaluations without a look at the clock. Time is up at look number `ends`; `after` are the
    evaluations from then on.
    """

    ends: int | None = None
    looks: int = 0
    evaluations: int = 0
    longest: int = 0
    after: int = 0
    _since: int = 0

    def is_time_up(self) -> bool:
        self.looks += 1
        self._since = 0
        return self.ends is not None and self.looks >= self.ends

    def evaluated(self) -> None:
        self.evaluations += 1
        self._since += 1
        self.longest = max(self.longest, self._since)
        self.after += self.ends is not None and self.looks >= self.ends


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> list[Work]:
    """The last of them counts."""
    counted: list[Work] = []
    factor = KindCosts.factor

    def counting(self: KindCosts, sums: Floats, minima: Floats) -> Floats:
        if counted:
            counted[-1].evaluated()
        return factor(self, sums, minima)

    monkeypatch.setattr(KindCosts, "factor", counting)
    return counted


def fleet(factor: float, *, num_units: int = 40) -> tuple[Sequence[UnitCapacity], Sequence[PlacementModel]]:
    """Models of different rates; `factor` 1 fills a part of the units."""
    draw = random.Random(3)
    units = [
        make_unit(f"u{i:02}", device=A100_80G, memory_mib=20 * 1024, total_blocks=400_000, num_gpus=1)
        for i in range(num_units)
    ]
    spec = make_spec(num_layers=32, num_kv_heads=8, head_dim=128, hidden_size=2048)
    models = [
        make_model(f"m{i:02}", spec=spec, rate_per_s=factor * draw.choice((0.5, 2.0, 10.0)), max_replicas=8)
        for i in range(60)
    ]
    return units, models


@pytest.mark.parametrize("ends", [1, 30, 300, 1500])
def test_search__time_is_up_at_any_look__ends_after_little_more_work(works: list[Work], ends: int) -> None:
    units, models = fleet(1.0)
    current = SearchSolver(rounds=5).solve(units, models, None)
    _, hotter = fleet(60.0)
    works.append(Work(ends=ends))

    SearchSolver(is_time_up=works[-1].is_time_up).solve(units, hotter, current)

    assert works[-1].looks >= ends
    assert works[-1].longest <= _MOST_AT_ONCE
    assert works[-1].after <= _MOST_AFTER


def test_search__demand_as_it_was__costs_next_to_nothing(works: list[Work]) -> None:
    """Also beside a model that no unit can hold: nothing that is tried for it helps."""
    units, models = fleet(1.0, num_units=12)
    huge = make_model("huge", spec=replace(make_spec(num_layers=200), hidden_size=20_480), max_replicas=8)
    models = [*models, huge]
    current = SearchSolver(rounds=5).solve(units, models, None)
    works.append(Work())

    again = SearchSolver(is_time_up=works[-1].is_time_up).solve(units, models, current)

    assert "huge" in again.unplaced
    assert all(set(again.units_of(m.model)) == set(current.units_of(m.model)) for m in models)
    assert works[-1].evaluations <= len(units) + 20


def test_search__models_on_many_units__works_out_once_what_each_claims_of_a_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Putting the plan together is work after time is up: it must not grow with replicas where units are alike."""
    claimed: list[str] = []
    of = QuotaClaim.of

    def counting(model: PlacementModel, block_bytes: int, num_gpus: int = 1) -> QuotaClaim:
        claimed.append(model.model)
        return of(model, block_bytes, num_gpus)

    monkeypatch.setattr(QuotaClaim, "of", counting)
    units, models = fleet(1.0)

    plan = SearchSolver(rounds=5).solve(units, models, None)

    assert sum(len(u.models) for u in plan.units) > 2 * len(models)
    assert sorted(claimed) == sorted(m.model for m in models)


def test_search__time_ends_before_anything_better_is_found__is_not_asked_for_its_worth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What routing makes of a plan takes long in a large fleet."""
    asked: list[RoutedService] = []
    of = RoutedService.of

    def counting(packing: Packing, units: Mapping[int, UnitCapacity]) -> RoutedService:
        asked.append(of(packing, units))
        return asked[-1]

    units, models = fleet(1.0)
    current = SearchSolver(rounds=5).solve(units, models, None)
    _, hotter = fleet(60.0)
    monkeypatch.setattr(RoutedService, "of", counting)
    of_what_is_kept = 3  # after those before and after overloaded units are relieved

    SearchSolver(is_time_up=lambda: len(asked) >= of_what_is_kept).solve(units, hotter, current)

    assert len(asked) == of_what_is_kept
