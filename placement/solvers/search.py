"""Our solver: several replicas per model, a mesh size per replica, hot beside cold, pools of different GPUs.

Builds plans by insertion under several rules, keeps the best, and improves it by ruin and recreation: take all models
off a few units, put them back in another order, keep what is no worse. It can be stopped at any time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from placement.estimation.model_floors import lifts_a_model
from placement.estimation.problem_arrays import Estimator, make_instance
from placement.nodes import FleetPlan, NodePool, openings_of
from placement.packing.constructions import Openings, largest_first, other_constructions, rebuilds, running_packing
from placement.packing.improvement import balance, improve
from placement.packing.insertion import InsertionRules
from placement.packing.layout import carve, plan_of_packing, spread_over_nodes
from placement.packing.overload_relief import evict_spare, insert_missing, keep_spare, relieve
from placement.packing.packing import Packing
from placement.packing.packing_objective import Key, RoutedService, key_of, serves_all
from placement.packing.spare_nodes import open_twins, roomiest
from placement.packing.spare_replicas import add_headroom
from placement.packing.wake_affinity import prefer_waking
from placement.plan import Plan, UnitCapacity
from placement.problem import PlacementModel
from placement.solvers.entry import IsTimeUp, SolverEntry
from placement.solvers.resilient_layout import most_resilient

_RULE = "the search ended before it was used; give it more time"
_ROOMY_MARGIN = 1.15
_OPENING_COSTS = (0.3, 1.0)
_MESH_BIASES = (0.0, -0.5, -1.0)
_FEW_MODELS = 50
_EVICTIONS = 2
_WORTH_REBUILDING = 0.05  # of the demand, for moving nearly everything


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSolver:
    """The same plan for the same input and seed, unless `is_time_up` cuts the search short. `rounds` bounds it; the
    default grows with the fleet. `least_gain`: a plan that moves models must serve so much more of the demand, or
    `least_model_gain` more of one model's.
    `least_margin`: units are filled up to where their load could grow by no more than this factor. `fewest_gpus`: nodes
    are cut into no more units than the demand takes, to say what to buy; else spare GPUs are spent on headroom.
    """

    estimator: Estimator = field(default_factory=Estimator)
    seed: int = 0
    rounds: int | None = None
    is_time_up: Callable[[], bool] = lambda: False
    least_gain: float = 0.01
    least_model_gain: float = 0.1
    least_margin: float = 1.0
    fewest_gpus: bool = False

    def solve(self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], current: Plan | None) -> Plan:
        ordered = sorted(units, key=lambda u: u.unit_id)
        instance = make_instance(ordered, models, self.estimator)
        spread = InsertionRules(spread=True)
        if current is not None and any(current.models_of(u.unit_id) for u in ordered):
            return self._from_running(running_packing(instance, ordered, current), dict(enumerate(ordered)))
        rules = [InsertionRules(spread=s, margin=m) for m in self._margins() for s in (True, False)]
        best = self._built(lambda: Packing.of_units(instance, ordered), [rules])
        self._improve(best, [spread, InsertionRules(margin=self.least_margin)])
        add_headroom(best, dict(enumerate(ordered)), is_time_up=self.is_time_up)
        prefer_waking(best, dict(enumerate(ordered)), self.is_time_up)
        return plan_of_packing(best, dict(enumerate(ordered)), rule=_RULE)

    def _margins(self) -> tuple[float, float]:
        return max(_ROOMY_MARGIN, self.least_margin), self.least_margin

    def _from_running(self, packing: Packing, units: Mapping[int, UnitCapacity]) -> Plan:
        """More replicas where load asks for them; models move only if that serves enough more."""
        spread = InsertionRules(spread=True)
        packing.mark_running()
        has_idle_units = any(not packing.parts[u] for u in packing.open_units())
        balance(packing, self.is_time_up)
        insert_missing(packing, spread, self.is_time_up)
        if not serves_all(key_of(packing)):
            self._relieve(packing, units)
        if has_idle_units:  # one that has joined: nothing moves, and it takes its part of bursts
            add_headroom(packing, units, moves=False, is_time_up=self.is_time_up)
        prefer_waking(packing, units, self.is_time_up)
        kept = key_of(packing)
        if serves_all(kept) or self.is_time_up():
            return plan_of_packing(packing, units, rule=_RULE)
        kept_packing, kept_service = packing.snapshot(), RoutedService.of(packing, units)
        if kept[1] >= _WORTH_REBUILDING:
            self._rebuild(packing, units)
        self._improve(packing, [spread, InsertionRules(spread=True, margin=self.least_margin)])
        keep_spare(packing, self.is_time_up)
        prefer_waking(packing, units, self.is_time_up)
        found = key_of(packing)
        # To ask routing takes long in a large fleet, and time is up.
        if found == kept or not self._gains(kept, kept_service, found, RoutedService.of(packing, units)):
            packing.restore(kept_packing)
        return plan_of_packing(packing, units, rule=_RULE)

    def _relieve(self, packing: Packing, units: Mapping[int, UnitCapacity]) -> None:
        """Adds replicas for models of overloaded units, unless routing then serves less."""
        before, packed = RoutedService.of(packing, units), packing.snapshot()
        relieve(packing, InsertionRules(spread=True), self.is_time_up)
        for _ in range(_EVICTIONS):
            evict_spare(packing, self.is_time_up)
            balance(packing, self.is_time_up)
        if RoutedService.of(packing, units).worth < before.worth:
            packing.restore(packed)

    def _gains(self, kept: Key, before: RoutedService, better: Key, after: RoutedService) -> bool:
        """Decides whether what moves is worth it, by what routing makes of both."""
        if better[0] != kept[0]:
            return better[0] < kept[0]
        gain = after.worth - before.worth
        is_lifted = gain >= 0 and lifts_a_model(before.by_model, after.by_model, self.least_model_gain)
        return gain >= self.least_gain or is_lifted

    def _rebuild(self, packing: Packing, units: Mapping[int, UnitCapacity]) -> None:
        """Packs the units anew, in place, if that serves much more: from a plan for another demand small steps take
        long.
        """
        least = key_of(packing)

        def emptied() -> Packing:
            empty = Packing.of_units(packing.instance, list(units.values()))
            empty.replace_running(packing.running or frozenset())
            return empty

        for built in rebuilds(
            emptied,
            InsertionRules(spread=True, margin=self.least_margin),
            self.is_time_up,
        ):
            key = key_of(built)
            if key[0] <= least[0] and key[1] <= least[1] - _WORTH_REBUILDING:
                least = (key[0], key[1] + _WORTH_REBUILDING, *key[2:])
                packing.restore(built.snapshot())
            if self.is_time_up():
                return

    def lay_out(self, pools: Sequence[NodePool], models: Sequence[PlacementModel]) -> FleetPlan:
        best = self._packed(pools, models, improves=True)
        if not self.fewest_gpus and serves_all(key_of(best)):
            best = roomiest(
                best,
                lambda grown: self._packed(pools, grown, improves=False),
                lambda: Packing.of_nodes(best.instance, pools),
                self.is_time_up,
            )
        if self.fewest_gpus or self.is_time_up():
            return carve(best, pools, rule=_RULE)
        spread_over_nodes(best)
        layout = carve(best, pools, rule=_RULE)
        open_twins(best)
        wider = carve(best, pools, rule=_RULE)
        layouts = (layout, wider) if len(wider.units) > len(layout.units) else (layout,)
        return most_resilient(layouts, models, self.estimator, self.is_time_up)

    def _packed(self, pools: Sequence[NodePool], models: Sequence[PlacementModel], *, improves: bool) -> Packing:
        """On as few GPUs as the demand takes."""
        shapes = openings_of(pools)
        instance = make_instance([unit for _, unit in shapes], models, self.estimator)
        openings = instance.openings(shapes)
        by_bias = [
            [
                InsertionRules(margin=margin, opening_cost=cost, mesh_bias=bias)
                for cost in _OPENING_COSTS
                for margin in self._margins()
            ]
            for bias in _MESH_BIASES
        ]
        best = self._built(lambda: Packing.of_nodes(instance, pools), by_bias, openings)
        if improves:
            self._improve(best, [rule for group in by_bias for rule in group], openings)
        return best

    def _built(
        self, empty: Callable[[], Packing], groups: Sequence[Sequence[InsertionRules]], openings: Openings = ()
    ) -> Packing:
        best: _Built | None = None
        for built in _builds(empty, groups, openings, self.is_time_up):
            best = built if best is None or built.key < best.key else best
            # Where units are given, using fewer of them is no gain.
            if self.is_time_up() or (not openings and serves_all(best.key)):
                break
        assert best is not None, "there is a rule"
        return best.packing

    def _improve(
        self,
        packing: Packing,
        rules: Sequence[InsertionRules],
        openings: Openings = (),
    ) -> None:
        improve(
            packing,
            rules,
            openings,
            seed=self.seed,
            rounds=self.rounds,
            is_time_up=self.is_time_up,
        )


def _make(estimator: Estimator, is_time_up: IsTimeUp) -> SearchSolver:
    return SearchSolver(estimator=estimator, is_time_up=is_time_up)


SOLVER = SolverEntry(
    name="search",
    rule="as many replicas as the demand needs, hot beside cold, units of different sizes and GPUs; insertion under "
    "several rules, then ruin and recreation until nothing improves or `--time-budget` ends; the same plan for "
    "the same input unless the budget cuts it short. On given units the fullest then shares, swaps or moves "
    "models until nothing raises the least headroom, and models get replicas beyond that (up to `replicas.max`) "
    "where a unit keeps half as much room again as its load takes: bursts find several units",
    make=_make,
    make_for_nodes=_make,
)


@dataclass(frozen=True, slots=True)
class _Built:
    key: Key
    packing: Packing
    rule: InsertionRules

    @classmethod
    def of(cls, packing: Packing, rule: InsertionRules) -> "_Built":
        return cls(key_of(packing), packing, rule)


def _builds(
    empty: Callable[[], Packing],
    groups: Sequence[Sequence[InsertionRules]],
    openings: Openings,
    is_time_up: IsTimeUp,
) -> Iterator[_Built]:
    """Of every rule, as long as that pays. Later groups favour larger meshes, which saves GPUs where all are served.
    In large fleets where not all are, improvement makes more of the time than further builds do.
    """
    best: _Built | None = None
    for group in groups:
        if best is not None and not serves_all(best.key) and len(best.packing.homes) > _FEW_MODELS:
            break
        tightest = min(rule.margin for rule in group)
        for rule in group:
            first = _Built.of(largest_first(empty(), rule, openings, is_time_up), rule)
            yield first
            best = first if best is None or first.key < best.key else best
            if rule.margin == tightest and len(first.packing.homes) <= _FEW_MODELS and not serves_all(best.key):
                yield from _others(empty, rule, openings, is_time_up, chooses=True)
    assert best is not None, "there is a rule"
    if len(best.packing.homes) > _FEW_MODELS or serves_all(best.key):
        yield from _others(empty, best.rule, openings, is_time_up, chooses=not serves_all(best.key))


def _others(
    empty: Callable[[], Packing], rule: InsertionRules, openings: Openings, is_time_up: IsTimeUp, *, chooses: bool
) -> Iterator[_Built]:
    others = other_constructions(empty, rule, openings, chooses=chooses, is_time_up=is_time_up)
    return (_Built.of(p, rule) for p in others)
