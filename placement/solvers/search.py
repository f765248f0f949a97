"""Our solver: several replicas per model, a mesh size per replica, hot beside cold, pools of different GPUs.

Builds plans by insertion under several rules, keeps the best, and improves it by ruin and recreation: take all models
off a few units, put them back in another order, keep what is no worse. It can be stopped at any time.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from placement.builds import builds
from placement.headroom import add_headroom
from placement.insertion import Insertion, InsertionRules
from placement.instance import Estimator, Instance, make_instance
from placement.layout import carve, plan_of_packing
from placement.merit import Key, Pairs, key_of, pairs_of, serves_all
from placement.nodes import FleetPlan, NodePool, openings_of
from placement.packing import Packing
from placement.plan import Plan, UnitCapacity
from placement.solvers.base import PlacementModel

_NO_LOAD = 1e-9
_RULE = "the search ended before it was used; give it more time"
_ROOMY_MARGIN = 1.15
_OPENING_COSTS = (0.3, 1.0)
_TOLERANCE = 0.01  # of the demand
_MOST_BALANCED, _BALANCING_ROUNDS = 8, 3
_MESH_BIASES = (0.0, -0.5, -1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSolver:
    """The same plan for the same input and seed, unless `is_time_up` cuts the search short. `rounds` bounds it; the
    default grows with the fleet. `least_gain`: a plan that moves models must serve so much more of the demand.
    `least_margin`: units are filled up to where their load could grow by no more than this factor.
    """

    estimator: Estimator = field(default_factory=Estimator)
    seed: int = 0
    rounds: int | None = None
    is_time_up: Callable[[], bool] = lambda: False
    least_gain: float = 0.01
    least_margin: float = 1.0

    def solve(self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], current: Plan | None) -> Plan:
        ordered = sorted(units, key=lambda u: u.unit_id)
        instance = make_instance(ordered, models, self.estimator)
        spread = InsertionRules(spread=True)
        if current is not None and any(current.models_of(u.unit_id) for u in ordered):
            return self._from_running(_running(instance, ordered, current), dict(enumerate(ordered)))
        best: Packing | None = None
        for margin in self._margins():
            for is_spread in (True, False):
                if best is None or not serves_all(key_of(best)):
                    rule = InsertionRules(spread=is_spread, margin=margin)
                    best = _better(best, builds(lambda: Packing.of_units(instance, ordered), rule), self.is_time_up)
        assert best is not None, "the first rule always builds"
        self._improve(best, [spread, InsertionRules(margin=self.least_margin)])
        add_headroom(best)
        return plan_of_packing(best, dict(enumerate(ordered)), rule=_RULE)

    def _margins(self) -> tuple[float, float]:
        return max(_ROOMY_MARGIN, self.least_margin), self.least_margin

    def _from_running(self, packing: Packing, units: Mapping[int, UnitCapacity]) -> Plan:
        """More replicas where load asks for them; models move only if that serves `least_gain` more."""
        spread, running = InsertionRules(spread=True), pairs_of(packing)
        _insert_missing(packing, spread)
        _relieve(packing, spread)
        kept = key_of(packing, running)
        kept_plan = plan_of_packing(packing, units, rule=_RULE)
        if serves_all(kept):
            return kept_plan
        self._improve(packing, [spread, InsertionRules(spread=True, margin=self.least_margin)], running=running)
        better = key_of(packing, running)
        gains = better[0] < kept[0] or kept[1] - better[1] >= self.least_gain
        return plan_of_packing(packing, units, rule=_RULE) if gains else kept_plan

    def lay_out(self, pools: Sequence[NodePool], models: Sequence[PlacementModel]) -> FleetPlan:
        shapes = openings_of(pools)
        instance = make_instance([unit for _, unit in shapes], models, self.estimator)
        openings = instance.openings(shapes)
        best: Packing | None = None
        rules = [
            InsertionRules(margin=margin, opening_cost=cost, mesh_bias=bias)
            for bias in _MESH_BIASES
            for cost in _OPENING_COSTS
            for margin in self._margins()
        ]
        for rule in rules:
            if best is None or rule.margin == self.least_margin or serves_all(key_of(best)):
                best = _better(best, builds(lambda: Packing.of_nodes(instance, pools), rule, openings), self.is_time_up)
        assert best is not None, "the first rule always builds"
        self._improve(best, rules, openings)
        return carve(best, pools, rule=_RULE)

    def _improve(
        self,
        packing: Packing,
        rules: Sequence[InsertionRules],
        openings: Sequence[tuple[int, int]] = (),
        *,
        running: Pairs | None = None,
    ) -> None:
        """In place."""
        draw = random.Random(self.seed)
        rounds = self.rounds if self.rounds is not None else 400 + 10 * len(packing.instance.models)
        now = best = key_of(packing, running)
        kept, idle = packing.snapshot(), 0
        patience = max(150, 600 - 5 * len(packing.instance.models))  # rounds are cheap where there is little to try
        for number in range(rounds if packing.instance.costs else 0):
            if idle >= patience or self.is_time_up() or (not openings and serves_all(best)):
                break
            packing.begin()
            rule = replace(draw.choice(list(rules)), few_replicas=draw.random() < 0.4)
            _ruin_and_recreate(packing, draw, rule, openings)
            key = key_of(packing, running)
            idle += 1
            if key <= now or _is_near(key, best, _TOLERANCE * (1 - number / rounds)):
                packing.commit()
                now = key
            else:
                packing.roll_back()
            if now < best:
                best, kept, idle = now, packing.snapshot(), 0
        packing.restore(kept)


def _is_near(key: Key, best: Key, tolerance: float) -> bool:
    """Record-to-record travel: a little worse than the best so far is accepted, ever less of it."""
    return key[0] <= best[0] and key[1] <= best[1] + tolerance and best[1] > 0


def _running(instance: Instance, units: Sequence[UnitCapacity], current: Plan) -> Packing:
    """What runs stays, where it still fits; the hottest first."""
    packing = Packing.of_units(instance, units)
    numbers = {u.unit_id: i for i, u in enumerate(units)}
    for model in sorted(range(len(instance.models)), key=lambda m: (-instance.models[m].demand.rate_per_s, m)):
        wanted = instance.models[model]
        homes = [numbers[u] for u in current.units_of(wanted.model) if u in numbers][: wanted.max_replicas]
        for unit in homes:
            costs = packing.costs_of(unit)
            part = wanted.demand.rate_per_s / len(homes)
            if costs.runs[model] and bool(costs.holds(packing.sums[unit] + costs.sums(model, part))):
                packing.put(unit, model, part)
    return packing


def _insert_missing(packing: Packing, rules: InsertionRules, openings: Sequence[tuple[int, int]] = ()) -> None:
    """Load that no replica has, and replicas that must be."""
    insertion = Insertion(packing, rules, openings)
    for model, wanted in enumerate(packing.instance.models):
        given = sum(packing.parts[u][model] for u in packing.homes[model])
        missing = max(0.0, wanted.demand.rate_per_s - given)
        if missing > _NO_LOAD or len(packing.homes[model]) < wanted.min_replicas:
            insertion.insert(model, missing)


def _relieve(packing: Packing, rules: InsertionRules) -> None:
    """Shares the load of models on overloaded units with new replicas elsewhere, the hottest first."""
    insertion = Insertion(packing, rules)
    overloaded = [u for u in packing.open_units() if packing.factor[u] < 1]
    parts = [(packing.parts[u][m], u, m) for u in overloaded for m in packing.parts[u]]
    for rate, unit, model in sorted(parts, key=lambda part: (-part[0], part[1:])):
        factor = float(packing.factor[unit])
        if factor >= 1 or len(packing.homes[model]) >= packing.instance.models[model].max_replicas:
            continue
        before = key_of(packing)
        packing.begin()
        packing.set_rate(unit, model, rate * factor / rules.margin)
        insertion.insert(model, rate * (1 - factor / rules.margin))
        if key_of(packing)[:3] < before[:3]:
            packing.commit()
        else:
            packing.roll_back()


def _better(best: Packing | None, builds: Iterator[Packing], is_time_up: Callable[[], bool]) -> Packing:
    for packing in builds:
        if best is None or key_of(packing) < key_of(best):
            best = packing
        if is_time_up():
            break
    assert best is not None, "there is always an order to build in"
    return best


def _ruin_and_recreate(
    packing: Packing, draw: random.Random, rules: InsertionRules, openings: Sequence[tuple[int, int]]
) -> None:
    rates = [m.demand.rate_per_s for m in packing.instance.models]
    lost: dict[int, float] = {}
    for unit in _ruined(packing, draw):
        for model in sorted(packing.parts[unit]):
            lost[model] = lost.get(model, 0.0) + packing.take(unit, model)
        if packing.nodes[unit] is not None:
            packing.close(unit)
    for model, wanted in enumerate(packing.instance.models):
        if not packing.homes[model] and (rates[model] > 0 or wanted.min_replicas):
            lost.setdefault(model, rates[model])
    costs = packing.instance.costs[0]
    weight = {m: costs.resident_bytes[m] if draw.random() < 0.5 else lost[m] for m in lost}
    blind = draw.random() < 0.3
    insertion = Insertion(packing, rules, openings)
    for model in sorted(lost, key=lambda m: (draw.random() if blind else -weight[m], m)):
        insertion.insert(model, lost[model])
    for model in sorted(lost):
        _balance(packing, model)


def _balance(packing: Packing, model: int) -> None:
    """Shifts load from overloaded homes of a model to its others, as routing will."""
    homes = sorted(packing.homes[model])
    if not 1 < len(homes) <= _MOST_BALANCED or all(packing.factor[u] >= 1 for u in homes):
        return
    for _ in range(_BALANCING_ROUNDS):
        rates = {u: packing.parts[u][model] for u in homes}
        pull = {u: rates[u] * min(3.0, max(0.2, float(packing.factor[u]))) for u in homes}
        total, pulled = sum(rates.values()), sum(pull.values())
        if pulled <= 0:
            return
        for unit in homes:
            packing.set_rate(unit, model, total * pull[unit] / pulled)


def _ruined(packing: Packing, draw: random.Random) -> list[int]:
    """A few units: one that is overloaded or little used, and others at random."""
    units = [u for u in packing.open_units() if packing.parts[u]]
    if not units:
        return []
    overloaded = [u for u in units if packing.factor[u] < 1]
    idle_first = sorted(units, key=lambda u: (-packing.factor[u], u))[: max(3, len(units) // 4)]
    first = draw.choice(overloaded if overloaded and draw.random() < 0.6 else idle_first)
    others = [u for u in units if u != first]
    return [first, *draw.sample(others, min(len(others), draw.randint(0, 3)))]
