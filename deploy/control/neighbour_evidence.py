"""Keeps what models lost to others of their units, from the totals in heartbeats."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from pdmux_actor.lease import UnitReport
from pdmux_actor.messages import ModelLoad, NeighbourLoss

_SAMPLE_S = 5.0  # heartbeats come twice a second, and a unit of many models has many pairs
_MOST_SAMPLE_S = 15.0  # a unit that was silent for longer stood still: its requests per second say nothing
_HALF_LIFE_S = 60.0
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
        kept = 0.5 ** (passed_s / _HALF_LIFE_S)
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
