"""Works out what is planned for: the units that may be used, and the models that need a place."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import reduce

from deploy.control.control_rules import ControlRules
from deploy.control.cordons import beside_pinned
from deploy.control.plan_choice import Needs
from deploy.control.popularity import Popularity
from deploy.control.scale_to_zero import ScaleToZero
from deploy.control.unit_registry import without_blocks
from deploy.control.usable_units import Fleet
from deploy.fleet_file.model_catalog import Catalog, CatalogModel
from pdmux_actor.lease import ModelPhase
from placement.demand import together
from placement.estimation.problem_arrays import Estimator
from placement.plan import Plan, UnitPlan
from placement.plan_explanation import Explanation, explain
from placement.problem import PlacementModel
from router.admission.demand_report import ModelAsked, added
from traces.timeliness import SloTarget


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """`plan` is in force, `goal` what shall be. `doubled` models need a second replica for as long as one of other
    weights is there.
    """

    fleet: Fleet
    catalog: Catalog
    popularity: Popularity
    scale_to_zero: ScaleToZero
    plan: Plan
    goal: Plan
    doubled: Set[str] = frozenset()

    def settle(self, rules: ControlRules, estimator: Estimator, now_s: float) -> None:
        """Brings up to date what plans count on of what units measured."""
        self.fleet.learning.settle(now_s, contention=estimator.contention, applies=rules.learn)
        if rules.part_neighbours:
            known = {m.id: m for m in self.catalog.placed}
            self.fleet.part_neighbours(
                lambda model: self.placement(known[model], now_s) if model in known else None, estimator, now_s
            )

    def needs(self, asleep: Set[str], rules: ControlRules, now_s: float) -> Needs:
        """Models whose shape is unknown (their config.json cannot be read now) stay where they are, untouched."""
        kept = {u.unit_id: sum(p.quota_blocks for p in u.models) for u in kept_plan(self.goal, self.catalog)}
        awake = [m for m in self.catalog.placed if m.id not in asleep]
        rested_s = now_s - rules.min_residency_s
        pinned = self.fleet.pinned()
        used_s = {m.id: self.last_used_s(m.id) for m in awake if m.settings.replicas.min == 0}
        guests = sorted(used_s.keys() & set(self.guests()), key=lambda m: (used_s[m], m))
        return Needs(
            units=tuple(
                without_blocks(self.fleet.learning.corrected(u.capacity), kept.get(u.unit_id, 0))
                for u in self.fleet.usable(now_s)
            ),
            models=tuple(p for p in (self._placement(m, pinned, now_s) for m in awake) if p is not None),
            sleepers=tuple(m for m in guests if used_s[m] < rested_s),
            guests=tuple(guests),
            latecomers=tuple(sorted(used_s.keys() - set(guests), key=lambda m: (-self.rate_per_s(m), m))),
            unknown=frozenset(m.id for m in self.catalog.placed if m.spec is None),
        )

    def guests(self) -> list[str]:
        """Returns models that shall have a place, for as long as they are used."""
        placed = self.goal.placed
        return [m.id for m in self.catalog.placed if m.settings.replicas.min == 0 and m.id in placed]

    def waiting(self, now_s: float) -> Mapping[str, bool]:
        """Returns models without a place that could make use of one, and have requests: whether any of these is not of
        low priority. One whose files are still on their way to a unit's disk could not.
        """
        placed = self.goal.placed
        out = [m for m in self.catalog.placed if m.settings.replicas.min == 0 and m.spec and m.id not in placed]
        able = [m for m in out if self.fleet.held_back(m.id, now_s) is None and not self.downloads(m.id)]
        told = ((m.id, self._asked(m.id, now_s)) for m in able)
        return {model: asked.held > asked.held_low for model, asked in told if asked is not None and asked.held}

    def downloads(self, model: str) -> bool:
        return any(self.fleet.downloads(unit.unit_id, model) for unit in self.fleet.registry)

    def last_used_s(self, model: str) -> float:
        """An adapter is used with its base."""
        return max(map(self.scale_to_zero.last_used_s, self._family(model)))

    def used_in_earnest_s(self, model: str) -> float:
        return max(map(self.scale_to_zero.used_in_earnest_s, self._family(model)))

    def rate_per_s(self, model: str) -> float:
        return sum(self.popularity.demand(m).rate_per_s for m in self._family(model))

    def asked(self, now_s: float) -> Mapping[str, ModelAsked]:
        """Returns what gateways count of each model that is placed, its adapters' requests among them."""
        told = ((m.id, self._asked(m.id, now_s)) for m in self.catalog.placed)
        return {model: asked for model, asked in told if asked is not None}

    def _asked(self, model: str, now_s: float) -> ModelAsked | None:
        counted = [c for c in (self.popularity.asked(m, now_s) for m in self._family(model)) if c is not None]
        return replace(reduce(added, counted), model=model) if counted else None

    def _family(self, model: str) -> tuple[str, ...]:
        return model, *(a.id for a in self.catalog.adapters_of(model))

    def counted(self) -> Mapping[str, int]:
        """Returns how many requests were heard of for each model that is placed, its adapters' among them."""
        return {m.id: sum(map(self.popularity.counted, self._family(m.id))) for m in self.catalog.placed}

    def placement(self, model: CatalogModel, now_s: float) -> PlacementModel | None:
        return self._placement(model, self.fleet.pinned(), now_s)

    def _placement(self, model: CatalogModel, pinned: Set[str], now_s: float) -> PlacementModel | None:
        family = (model, *self.catalog.adapters_of(model.id))
        placement = model.placement(together(model.id, [self.popularity.demand(m.id) for m in family]))
        if placement is None:
            return None
        correction, least = self.fleet.learning.of_model(model.id), 1 + (model.id in self.doubled)
        # One plan for all of them: that of the one that is in the greatest hurry.
        slo = SloTarget(ttft_s=min(m.slo.ttft_s for m in family), tbt_s=min(m.slo.tbt_s for m in family))
        placement = replace(
            placement,
            min_replicas=max(least, placement.min_replicas),
            max_replicas=max(least, placement.max_replicas),
            correction=correction,
            slo=slo,
            strains=self.fleet.neighbours.of_model(model.id),
        )
        if self.fleet.held_back(model.id, now_s) is None:
            return beside_pinned(placement, self.goal, pinned)
        cordoned = self.fleet.cordoned()
        homes = sum(
            unit_id not in cordoned and self.fleet.phase(unit_id, model.id) is ModelPhase.READY
            for unit_id in self.plan.units_of(model.id)
        )
        return replace(placement, min_replicas=homes, max_replicas=homes) if homes else None


def explain_also(
    asleep: PlacementModel | None, model: str, needs: Needs, goal: Plan, estimator: Estimator
) -> Explanation:
    """Explains a model's place in the goal; of one that is `asleep` what it would be."""
    models = needs.models if asleep is None else (*needs.models, asleep)
    told = explain(model, needs.units, models, goal, estimator)
    return told if asleep is None else replace(told, unplaced="nobody asks for it; the next request wakes it")


def kept_plan(goal: Plan, catalog: Catalog, unknown: Set[str] = frozenset()) -> tuple[UnitPlan, ...]:
    """Models of unknown shape, where they are; and those that were `unknown` when a plan was asked for."""
    unknown = {m.id for m in catalog.placed if m.spec is None or m.id in unknown}
    return tuple(
        UnitPlan(unit_id=u.unit_id, models=tuple(p for p in u.models if p.model in unknown)) for u in goal.units
    )
