"""Explains why a model sits where it sits: what each of its homes gives it, and what every other unit would have
given.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from placement.errors import ModelUnknown
from placement.estimation.memory import bytes_for_models, divides, resident_bytes_on
from placement.estimation.plan_estimate import FleetEstimate, ModelEstimate, UnitEstimate, estimate
from placement.estimation.problem_arrays import Estimator, make_instance
from placement.estimation.refusal import engine_refusal
from placement.estimation.throughput import BYTES, LOAD
from placement.neighbour_strain import strains_in
from placement.packing.packing import Packing
from placement.plan import Plan, UnitCapacity
from placement.problem import PlacementModel
from placement.scaling.seasonal_forecast import ExpectedRate
from placement.step_correction import UNCORRECTED, StepCorrection
from traces.timeliness import SloTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeReason:
    """`alone_headroom` is that of the unit if it held nothing else; `neighbours` are what it shares it with.
    `correction` is what the unit's measured steps say of the estimate; `loses` and `takes` what the model and each of
    those were seen to lose to the other beyond it, as parts of a target at the loads planned for.
    """

    unit: UnitEstimate
    neighbours: tuple[str, ...]
    alone_headroom: float
    correction: StepCorrection = UNCORRECTED
    loses: Mapping[str, float] = field(default_factory=dict)
    takes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A unit that does not hold the model. `lost_per_s`: requests within SLO that the fleet would serve less, had this
    unit one replica's load in place of the home that has most of it; None where it has no room. `headroom` is what the
    unit would be left with.
    """

    unit_id: str
    reason: str
    lost_per_s: float | None
    headroom: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTargets:
    """Says that a model is planned for other targets than its `own`, since its requests name them; `tighter` is the
    share of those that name tighter ones.
    """

    own: SloTarget
    planned: SloTarget
    tighter: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """`rejected`: the closest first. `unplaced` says why replicas are missing. `asleep`: units whose host memory holds
    its weights, with the seconds that waking it takes there. `correction` is what the model's measured steps say of the
    estimate, on whatever unit.
    """

    model: ModelEstimate
    homes: tuple[HomeReason, ...]
    rejected: tuple[Rejection, ...]
    unplaced: str | None
    asleep: Mapping[str, float] = field(default_factory=dict)
    correction: StepCorrection = UNCORRECTED
    targets: PlannedTargets | None = None
    forecast: ExpectedRate | None = None


def explain(
    model: str,
    units: Sequence[UnitCapacity],
    models: Sequence[PlacementModel],
    plan: Plan,
    estimator: Estimator,
) -> Explanation:
    """Raises ModelUnknown."""
    if model not in {m.model for m in models}:
        raise ModelUnknown(model=model, known=tuple(sorted(m.model for m in models)))
    found = estimate(units, models, plan, estimator)
    asked = next(m for m in models if m.model == model)
    trial = _Trial(model, units, models, found, estimator)
    return Explanation(
        model=next(m for m in found.models if m.model == model),
        homes=tuple(trial.homes()),
        rejected=tuple(sorted(trial.rejections(), key=_closeness)),
        unplaced=plan.unplaced.get(model),
        asleep={u.unit_id: u.asleep[model] for u in units if model in u.asleep},
        correction=asked.correction,
        targets=_planned_targets(asked),
    )


def _planned_targets(model: PlacementModel) -> PlannedTargets | None:
    if model.slo is None or model.target is None or model.target == model.slo:
        return None
    return PlannedTargets(own=model.slo, planned=model.target, tighter=model.demand.targets.tighter(model.slo))


def _closeness(rejection: Rejection) -> tuple[bool, float, float, str]:
    lost = rejection.lost_per_s
    return lost is None, round(lost or 0.0, 6), -(rejection.headroom or 0.0), rejection.unit_id


class _Trial:
    """The plan as a packing, to try the model elsewhere."""

    def __init__(
        self,
        model: str,
        units: Sequence[UnitCapacity],
        models: Sequence[PlacementModel],
        found: FleetEstimate,
        estimator: Estimator,
    ) -> None:
        self._units, self._found = units, found
        self._instance = make_instance(units, models, estimator)
        self._packing = Packing.of_units(self._instance, units)
        for number, unit in enumerate(found.units):
            for replica in unit.replicas:
                self._packing.put(number, self._instance.index[replica.model], replica.rate_per_s)
        self._model = self._instance.index[model]
        self._spec = self._instance.models[self._model].spec
        rates = {u: self._packing.parts[u][self._model] for u in self._packing.homes[self._model]}
        self._home = max(sorted(rates), key=lambda u: rates[u], default=None)
        rate = float(self._instance.rates_per_s[self._model])
        self._part = rate if self._home is None else rates[self._home]

    def homes(self) -> Iterator[HomeReason]:
        for number in sorted(self._packing.homes[self._model]):
            unit, kind = self._found.units[number], int(self._packing.kind[number])
            rate = self._packing.parts[number][self._model]
            others = tuple(r.model for r in unit.replicas if self._instance.index[r.model] != self._model)
            alone = self._packing.factor_alone(self._model, rate, kind)
            correction = self._units[number].correction
            lost = strains_in(self._packing.parts[number], self._instance.strains)
            names = [m.model for m in self._instance.models]
            yield HomeReason(
                unit=unit,
                neighbours=others,
                alone_headroom=alone,
                correction=correction,
                loses={names[other]: part for other, part in lost.get(self._model, {}).items()},
                takes={names[m]: parts[self._model] for m, parts in lost.items() if self._model in parts},
            )

    def rejections(self) -> Iterator[Rejection]:
        served_at_home = self._served_at_home()
        for kind in range(len(self._instance.kinds)):
            able, factors = self._packing.factors_with(self._model, self._part, kind)
            with_it = dict(zip(map(int, able), map(float, factors), strict=True))
            for number in map(int, np.flatnonzero(self._packing.kind == kind)):
                if self._model not in self._packing.parts[number]:
                    yield self._rejection(number, with_it.get(number, -1.0), served_at_home)

    def _served_at_home(self) -> float:
        """What the fleet serves more because the busiest home has its part of the model."""
        if self._home is None:
            return 0.0
        packing = self._packing
        before = _served(packing, self._home)
        packing.begin()
        packing.take(self._home, self._model)
        without = _served(packing, self._home)
        packing.roll_back()
        return before - without

    def _rejection(self, number: int, factor: float, served_at_home: float) -> Rejection:
        unit = self._units[number]
        if factor < 0:
            return Rejection(unit_id=unit.unit_id, reason=self._no_room(number), lost_per_s=None, headroom=None)
        load = float(self._packing.sums[number, LOAD])
        served_here = (load + self._part) * min(1.0, factor) - _served(self._packing, number)
        lost = served_at_home - served_here
        if self._home is None:
            reason = "no replica was given to it although it has room"
        elif factor <= 0:
            reason = "an SLO cannot be met there at any load"
        elif lost > 1e-6:
            reason = f"{lost:.3g} requests/s fewer would be served within SLO"
        else:
            reason = self._no_gain(factor)
        return Rejection(unit_id=unit.unit_id, reason=reason, lost_per_s=max(0.0, lost), headroom=factor)

    def _no_gain(self, factor: float) -> str:
        assert self._home is not None, "it is compared with a home"
        here, home = float(self._packing.factor[self._home]), self._units[self._home].unit_id
        if factor <= here:
            return f"serves no more: headroom there would be x{factor:.2f}, on {home} it is x{here:.2f}"
        return f"serves no more: headroom there would be x{factor:.2f}, but x{here:.2f} on {home} is enough"

    def _no_room(self, number: int) -> str:
        unit = self._units[number]
        if not divides(self._spec, unit.num_gpus):
            return f"its heads cannot be divided among {unit.num_gpus} GPUs"
        refused = engine_refusal(self._instance.models[self._model], unit)
        if refused is not None:
            return refused.reason
        if unit.max_models is not None and len(self._packing.parts[number]) >= unit.max_models:
            return f"its engine serves {unit.max_models} model{'' if unit.max_models == 1 else 's'} at most"
        needed = resident_bytes_on(unit, self._instance.models[self._model])
        free = bytes_for_models(unit) - float(self._packing.sums[number, BYTES])
        if needed > free:
            return f"weights and workspace lack {(needed - free) / 2**30:.1f} GiB"
        return "the KV pool is too small for one mean request of each model"


def _served(packing: Packing, number: int) -> float:
    return float(packing.sums[number, LOAD]) * min(1.0, float(packing.factor[number]))
