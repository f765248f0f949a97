"""Keeps what units measured of their steps, from the totals in their heartbeats, by unit and version of its engine."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from pdmux_actor.lease import UnitReport
from pdmux_actor.messages import StepTotals

_MOST_LAUNCHES = 1000.0  # that count: a unit that has run for weeks can still learn
_LONGEST_GAP_S = 10.0  # between two heartbeats with launches, as far as decay goes: who rests forgets nothing
_FORGOTTEN_S = 3600.0  # after a unit's last heartbeat
_HALF_LIFE_S = 300.0  # of what was measured, while there is newer
_LEAST_LAUNCHES = 30.0  # of a unit, model and phase, that count


class StepSums(msgspec.Struct):
    """Decayed totals; `expected_s` is the latency model's with the host's time."""

    launches: float = 0.0
    expected_s: float = 0.0
    measured_s: float = 0.0


class MeasuredUnit(msgspec.Struct, kw_only=True):
    """`steps` by model, phase and quarters of the SMs. `engine` is the version that was measured."""

    unit_id: str
    place: str
    pool: str
    engine: str
    steps: dict[str, dict[str, dict[int, StepSums]]] = {}


class StepResidual(msgspec.Struct, frozen=True, kw_only=True):
    """`factor`: measured / expected, over `launches` that count, on so many quarters of the SMs."""

    model: str
    phase: str
    quarters: int
    launches: float
    factor: float


class StepEvidence:
    """A unit that takes a lost one's place starts with that one's, if its engine is the same."""

    def __init__(self) -> None:
        self._units: dict[str, MeasuredUnit] = {}
        self._last: dict[tuple[str, str, str, int], tuple[StepTotals, float]] = {}
        self._heard_s: dict[str, float] = {}
        self._restored: set[str] = set()

    def hear(self, report: UnitReport, place: str, *, host_s: float, now_s: float) -> None:
        """`host_s`: what the estimate takes the host to add to each launch."""
        unit = self._units.get(report.unit_id)
        if unit is None or unit.engine != report.engine:
            unit = self._units[report.unit_id] = self._successor(report, place)
        self._heard_s[report.unit_id] = now_s
        for totals in report.load.steps if report.load is not None else ():
            self._add(unit, totals, host_s, now_s)

    def forget_silent(self, now_s: float) -> None:
        for unit_id in [u for u, heard_s in self._heard_s.items() if now_s - heard_s > _FORGOTTEN_S]:
            self._forget(unit_id)

    def pools(self) -> Mapping[str, str]:
        """Returns the pool of each unit."""
        return {unit.unit_id: unit.pool for unit in self._units.values()}

    def log_factors(self, phases: Sequence[str]) -> Mapping[tuple[str, str], float]:
        """log(measured / expected) by unit and model, of the first of the phases that has been seen enough of."""
        found: dict[tuple[str, str], float] = {}
        for unit in self._units.values():
            for model, of_model in unit.steps.items():
                for phase in phases:
                    parts = of_model.get(phase, {}).values()
                    expected_s, measured_s = sum(p.expected_s for p in parts), sum(p.measured_s for p in parts)
                    if sum(p.launches for p in parts) >= _LEAST_LAUNCHES and min(expected_s, measured_s) > 0:
                        found[unit.unit_id, model] = math.log(measured_s / expected_s)
                        break
        return found

    def residuals(self, unit_id: str) -> Iterator[StepResidual]:
        """Lists what was measured on a unit, as far as it counts."""
        unit = self._units.get(unit_id)
        for model, phases in sorted(unit.steps.items()) if unit is not None else ():
            for phase, by_quarters in sorted(phases.items()):
                for quarters, sums in sorted(by_quarters.items()):
                    if sums.launches >= _LEAST_LAUNCHES and sums.expected_s > 0:
                        factor = sums.measured_s / sums.expected_s
                        yield StepResidual(
                            model=model, phase=phase, quarters=quarters, launches=sums.launches, factor=factor
                        )

    def kept(self) -> tuple[MeasuredUnit, ...]:
        """Returns a copy of everything, for a control loop after this one."""
        return msgspec.msgpack.decode(msgspec.msgpack.encode(list(self._units.values())), type=tuple[MeasuredUnit, ...])

    def restore(self, units: Iterable[MeasuredUnit], now_s: float) -> None:
        """Takes in what a control loop before this one has kept, before anything is heard."""
        for unit in units:
            self._units[unit.unit_id], self._heard_s[unit.unit_id] = unit, now_s
            self._restored.add(unit.unit_id)

    def _successor(self, report: UnitReport, place: str) -> MeasuredUnit:
        before = next((u for u in self._units.values() if u.place == place), None)
        if before is not None:
            self._forget(before.unit_id)
        steps = before.steps if before is not None and before.engine == report.engine else {}
        return MeasuredUnit(unit_id=report.unit_id, place=place, pool=report.pool, engine=report.engine, steps=steps)

    def _add(self, unit: MeasuredUnit, totals: StepTotals, host_s: float, now_s: float) -> None:
        key = unit.unit_id, totals.model, totals.phase, totals.quarters
        before, before_s = self._last.get(key, (None, now_s))
        self._last[key] = totals, now_s if before is None or totals.launches != before.launches else before_s
        if before is None and unit.unit_id in self._restored:
            return  # what there was before the restart has been counted
        if before is None or totals.launches < before.launches:  # the model has left and come back
            before = StepTotals(model=totals.model, phase=totals.phase, quarters=totals.quarters)
        launches = totals.launches - before.launches
        if launches == 0:
            return
        by_quarters = unit.steps.setdefault(totals.model, {}).setdefault(totals.phase, {})
        sums = by_quarters.setdefault(totals.quarters, StepSums())
        kept = 0.5 ** (min(now_s - before_s, _LONGEST_GAP_S) / _HALF_LIFE_S)
        kept *= min(1.0, _MOST_LAUNCHES / max(1.0, sums.launches))
        sums.launches = kept * sums.launches + launches
        sums.expected_s = kept * sums.expected_s + totals.modelled_s - before.modelled_s + launches * host_s
        sums.measured_s = kept * sums.measured_s + totals.measured_s - before.measured_s

    def _forget(self, unit_id: str) -> None:
        self._units.pop(unit_id, None)
        self._heard_s.pop(unit_id, None)
        self._restored.discard(unit_id)
        self._last = {key: last for key, last in self._last.items() if key[0] != unit_id}
