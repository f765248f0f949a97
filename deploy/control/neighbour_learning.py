"""Learns which models hurt each other on a unit beyond what the estimate of their plan expects."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pdmux_actor.lease import UnitReport
from pdmux_actor.messages import ModelLoad, NeighbourLoss
from placement.estimation.expected_losses import ExpectedLoss, expected_sharing
from placement.estimation.problem_arrays import Estimator
from placement.neighbour_strain import NeighbourStrain
from placement.plan import UnitCapacity
from placement.problem import PlacementModel

_SAMPLE_S = 5.0  # heartbeats come twice a second, and a unit of many models has many pairs
_MOST_SAMPLE_S = 15.0  # a unit that was silent for longer stood still: its requests per second say nothing
_LOSS_HALF_LIFE_S = 60.0
_FORGOTTEN_S = 60.0  # after a unit's last sample


@dataclass(slots=True, eq=False)
class SharingModel:
    """Decayed totals of a model on a unit. `ttft_s`, `tbt_s`: lost, by neighbour."""

    requests: float = 0.0
    in_time: float = 0.0
    tokens: float = 0.0
    ttft_s: dict[str, float] = field(default_factory=dict)
    tbt_s: dict[str, float] = field(default_factory=dict)

    @property
    def late_share(self) -> float:
        return 1.0 - self.in_time / self.requests if self.requests > 0 else 0.0

    def fade(self, kept: float) -> None:
        self.requests, self.in_time, self.tokens = kept * self.requests, kept * self.in_time, kept * self.tokens
        for lost_s in (self.ttft_s, self.tbt_s):
            for neighbour in lost_s:
                lost_s[neighbour] *= kept

    def add(self, before: ModelLoad, now: ModelLoad) -> None:
        self.requests += now.requests_ended_total - before.requests_ended_total
        self.in_time += now.requests_in_time_total - before.requests_in_time_total
        self.tokens += now.output_tokens_total - before.output_tokens_total
        known = {loss.neighbour: loss for loss in before.lost_to}
        for loss in now.lost_to:
            was = known.get(loss.neighbour, _NOTHING)
            for lost_s, more_s in ((self.ttft_s, loss.ttft_s - was.ttft_s), (self.tbt_s, loss.tbt_s - was.tbt_s)):
                lost_s[loss.neighbour] = lost_s.get(loss.neighbour, 0.0) + max(0.0, more_s)


_NOTHING = NeighbourLoss(neighbour="", ttft_s=0.0, tbt_s=0.0)


@dataclass(slots=True, eq=False)
class SharedUnit:
    """`span_s`: decayed time. `models` are those that the unit has now: who came or went begins anew. `stood_s`: for
    how long the clock had stood by the sample.
    """

    sampled_s: float
    loads: Mapping[str, ModelLoad]
    stood_s: float = 0.0
    span_s: float = 0.0
    models: dict[str, SharingModel] = field(default_factory=dict)


class NeighbourEvidence:
    """`stood_s` returns for how long in all the clock of `now_s` has stood: units served on meanwhile, and counted."""

    def __init__(self, stood_s: Callable[[], float] = lambda: 0.0) -> None:
        self._stood_s = stood_s
        self._units: dict[str, SharedUnit] = {}

    def hear(self, report: UnitReport, now_s: float) -> None:
        unit = self._units.get(report.unit_id)
        if report.load is None or (unit is not None and now_s - unit.sampled_s < _SAMPLE_S):
            return
        loads, stood_s = {m.model: m for m in report.load.models}, self._stood_s()
        if unit is None or loads.keys() != unit.loads.keys() or _restarted(unit.loads, loads):
            self._units[report.unit_id] = SharedUnit(sampled_s=now_s, loads=loads, stood_s=stood_s)
            return
        passed_s = now_s - unit.sampled_s + stood_s - unit.stood_s
        unit.stood_s = stood_s
        if passed_s > _MOST_SAMPLE_S:
            unit.sampled_s, unit.loads = now_s, loads
            return
        kept = 0.5 ** (passed_s / _LOSS_HALF_LIFE_S)
        unit.span_s = kept * unit.span_s + passed_s
        for model, load in loads.items():
            measured = unit.models.setdefault(model, SharingModel())
            measured.fade(kept)
            measured.add(unit.loads[model], load)
        unit.sampled_s, unit.loads = now_s, loads

    def units(self, now_s: float) -> Iterator[tuple[str, SharedUnit]]:
        """Lists those that have been heard of lately, by id."""
        self._units = {u: unit for u, unit in self._units.items() if now_s - unit.sampled_s <= _FORGOTTEN_S}
        yield from sorted(self._units.items())


def _restarted(before: Mapping[str, ModelLoad], now: Mapping[str, ModelLoad]) -> bool:
    """The engine, or a model that left and came back, counts from 0."""
    return any(now[m].output_tokens_total < load.output_tokens_total for m, load in before.items())


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
