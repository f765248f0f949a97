"""Learns which models hurt each other on a unit beyond what the estimate of their plan expects."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from deploy.control.neighbour_evidence import NeighbourEvidence, SharedUnit, SharingModel
from placement.estimation.expected_losses import ExpectedLoss, expected_sharing
from placement.estimation.problem_arrays import Estimator
from placement.neighbour_strain import NeighbourStrain
from placement.plan import UnitCapacity
from placement.problem import PlacementModel

_LEAST_REQUESTS = 20.0  # of a model, before its losses say anything
_LATE = 0.1  # of a model's requests; below, whatever it loses hurts nobody
_MOST_LATE = 0.6
_LEAST_PART = 0.1  # of a target: less is forgotten
_MOST_PART = 2.0
_TAIL = math.log(100)  # 99 % of waits stay below so many means, as in throughput.py
_BAND = math.log(1.25)  # what is closer to what plans count on changes nothing
_HALF_LIFE_S = 1800.0  # of what was learned, while the two are apart or do no harm
_MOST_UNITS = 16  # that are looked at in one go: the worst


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedStrain:
    """`model` loses `target_part` of a target for each request per second of `neighbour`, and lost `part` of it when it
    was seen last, at `seen_s`.
    """

    model: str
    neighbour: str
    target_part: float
    part: float
    seen_s: float


class NeighbourLearning:
    """Brings strains up to date in `settle`; between two of them they stay as they are, so that plans agree."""

    def __init__(self, stood_s: Callable[[], float] = lambda: 0.0) -> None:
        self.evidence = NeighbourEvidence(stood_s)
        self._learned: dict[tuple[str, str], LearnedStrain] = {}
        self._told: dict[str, tuple[NeighbourStrain, ...]] = {}

    def settle(
        self,
        now_s: float,
        *,
        capacity_of: Callable[[str], UnitCapacity | None],
        model_of: Callable[[str], PlacementModel | None],
        estimator: Estimator,
    ) -> None:
        suspects = [(u, unit) for u, unit in self.evidence.units(now_s) if _worst(unit) >= _LATE]
        suspects.sort(key=lambda suspect: (-_worst(suspect[1]), suspect[0]))
        found: dict[tuple[str, str], LearnedStrain] = {}
        for unit_id, unit in suspects[:_MOST_UNITS]:
            capacity = capacity_of(unit_id)
            models = {name: placed for name in unit.models if (placed := model_of(name)) is not None}
            if capacity is None or capacity.device is None or len(models) < 2:  # of cores nothing is expected
                continue
            for strain in _strains(unit, capacity, models, estimator, now_s):
                key = strain.model, strain.neighbour
                if key not in found or strain.part > found[key].part:
                    found[key] = strain
        self._learned = {k: s for k, s in self._learned.items() if s.part * _kept(s, now_s) >= _LEAST_PART}
        for key, strain in found.items():
            before = self._learned.get(key)
            if before is not None and abs(math.log(strain.target_part / before.target_part)) <= _BAND:
                self._learned[key] = replace(before, seen_s=now_s)
            else:
                self._learned[key] = strain
        self._told = {}
        for (model, _), strain in sorted(self._learned.items()):
            told = NeighbourStrain(neighbour=strain.neighbour, target_part=strain.target_part * _steps(strain, now_s))
            self._told[model] = (*self._told.get(model, ()), told)

    def of_model(self, model: str) -> tuple[NeighbourStrain, ...]:
        return self._told.get(model, ())

    def kept(self) -> tuple[LearnedStrain, ...]:
        """Returns everything, for a control loop after this one."""
        return tuple(strain for _, strain in sorted(self._learned.items()))

    def restore(self, strains: Iterable[LearnedStrain]) -> None:
        self._learned = {(s.model, s.neighbour): s for s in strains}


def _worst(unit: SharedUnit) -> float:
    if len(unit.models) < 2:
        return 0.0
    return max((m.late_share for m in unit.models.values() if m.requests >= _LEAST_REQUESTS), default=0.0)


def _strains(
    unit: SharedUnit,
    capacity: UnitCapacity,
    models: Mapping[str, PlacementModel],
    estimator: Estimator,
    now_s: float,
) -> Iterator[LearnedStrain]:
    """As much as makes the estimate agree with what share of a model's requests was in time, if its neighbours took
    much more of its target than expected; each of them for its part of that.
    """
    rates_per_s = {name: unit.models[name].requests / unit.span_s for name in models}
    expected = expected_sharing(capacity, list(models.values()), rates_per_s, estimator)
    for name, model in models.items():
        measured = unit.models[name]
        if measured.requests < _LEAST_REQUESTS or measured.late_share < _LATE:
            continue
        excess = {
            other: found
            for other in models
            if (name, other) in expected.losses
            and (found := _excess(measured, other, expected.losses[name, other], model)) > 0
        }
        taken = sum(excess.values())
        part = min(_MOST_PART, 1 / (1 - min(_MOST_LATE, measured.late_share)) - 1 / max(expected.headroom, 1e-6))
        if _TAIL * taken < _LEAST_PART or part < _LEAST_PART:
            continue
        for other, found in excess.items():
            of_other = part * found / taken
            if rates_per_s[other] > 0 and of_other >= _LEAST_PART:
                target_part = of_other / rates_per_s[other]
                yield LearnedStrain(model=name, neighbour=other, target_part=target_part, part=of_other, seen_s=now_s)


def _excess(measured: SharingModel, neighbour: str, expected: ExpectedLoss, model: PlacementModel) -> float:
    """Of the target that suffers most: what a request loses on average, beyond what is expected."""
    target = model.target
    if target is None:
        return 0.0
    ttft_s = measured.ttft_s.get(neighbour, 0.0) / measured.requests
    tbt_s = measured.tbt_s.get(neighbour, 0.0) / max(1.0, measured.tokens - measured.requests)
    return max((ttft_s - expected.ttft_s) / target.ttft_s, (tbt_s - expected.tbt_s) / target.tbt_s)


def _kept(strain: LearnedStrain, now_s: float) -> float:
    return float(0.5 ** ((now_s - strain.seen_s) / _HALF_LIFE_S))


def _steps(strain: LearnedStrain, now_s: float) -> float:
    """Fades in steps, so that plans agree meanwhile."""
    return math.exp(_BAND * math.ceil(math.log(_kept(strain, now_s)) / _BAND))
