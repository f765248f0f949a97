"""Counts of what a gateway was asked for, for the control loop."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pdmux_actor.messages import Slo
from router.admission.demand_report import DemandReport, ModelAsked, TargetCount
from router.request_terms import AdmissionRequest

_STEP = 1.1  # of targets that are told apart
_LEAST_S, _MOST_S = 1e-3, 3600.0


class TargetCounts:
    """Counts which targets requests ask for where they are not their model's own, in steps of ten percent: at most 160
    of each kind, whatever clients write.
    """

    def __init__(self) -> None:
        self._ttft: dict[int, int] = {}
        self._tbt: dict[int, int] = {}

    def asked(self, target: Slo, own: Slo) -> None:
        if target.ttft_s != own.ttft_s:
            _count(self._ttft, target.ttft_s)
        if target.tbt_s != own.tbt_s:
            _count(self._tbt, target.tbt_s)

    def ttft(self) -> tuple[TargetCount, ...]:
        return _told(self._ttft)

    def tbt(self) -> tuple[TargetCount, ...]:
        return _told(self._tbt)


@dataclass(slots=True, eq=False)
class _Totals:
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    shed: int = 0
    no_capacity: int = 0
    finished: int = 0
    ttft_met: int = 0
    tbt_met: int = 0
    in_time: int = 0
    targets: TargetCounts = field(default_factory=TargetCounts)


class DemandCounts:
    """Only models of the catalog are counted: their number bounds it."""

    def __init__(self) -> None:
        self._totals: dict[str, _Totals] = {}

    def asked(self, model: str, prompt_tokens: int) -> None:
        totals = self._of(model)
        totals.requests += 1
        totals.prompt_tokens += prompt_tokens

    def targets(self, model: str, asked: Slo, own: Slo) -> None:
        self._of(model).targets.asked(asked, own)

    def shed(self, model: str) -> None:
        self._of(model).shed += 1

    def no_capacity(self, model: str) -> None:
        self._of(model).no_capacity += 1

    def ended(self, model: str, *, output_tokens: int, finished: bool, ttft_met: bool, tbt_met: bool) -> None:
        totals = self._of(model)
        totals.output_tokens += output_tokens
        if finished:
            totals.finished += 1
            totals.ttft_met += ttft_met
            totals.tbt_met += tbt_met
            totals.in_time += ttft_met and tbt_met

    def report(
        self,
        gateway_id: str,
        waiting: Iterable[tuple[AdmissionRequest, float]],
        *,
        held: Mapping[str, int],
        held_low: Mapping[str, int],
        before_first: Callable[[str], int],
        is_ready: Callable[[str], bool],
        now_s: float,
    ) -> DemandReport:
        """`waiting` are asks with the time they came, or lost their unit: a model that they wait for must not fall
        asleep, whether or not anybody else asks for it. `held` counts those that could not ask yet, `held_low` those of
        low priority among them, `before_first` asks without a token, on units too.
        """
        for model in held:
            self._of(model)
        numbers: dict[str, int] = {}
        low: dict[str, int] = {}
        oldest_s: dict[str, float] = {}
        for request, since_s in waiting:
            numbers[request.model] = numbers.get(request.model, 0) + 1
            low[request.model] = low.get(request.model, 0) + request.gives_way
            oldest_s[request.model] = min(oldest_s.get(request.model, since_s), since_s)
        return DemandReport(
            gateway_id=gateway_id,
            models=tuple(
                ModelAsked(
                    model=model,
                    requests_total=totals.requests,
                    prompt_tokens_total=totals.prompt_tokens,
                    output_tokens_total=totals.output_tokens,
                    held=held.get(model, 0) + (0 if is_ready(model) else numbers.get(model, 0)),
                    held_low=held_low.get(model, 0) + (0 if is_ready(model) else low.get(model, 0)),
                    waiting=before_first(model) + held.get(model, 0),
                    oldest_wait_s=now_s - oldest_s.get(model, now_s),
                    shed_total=totals.shed,
                    no_capacity_total=totals.no_capacity,
                    finished_total=totals.finished,
                    ttft_met_total=totals.ttft_met,
                    tbt_met_total=totals.tbt_met,
                    in_time_total=totals.in_time,
                    ttft_targets=totals.targets.ttft(),
                    tbt_targets=totals.targets.tbt(),
                )
                for model, totals in sorted(self._totals.items())
            ),
        )

    def keep_models(self, models: frozenset[str]) -> None:
        self._totals = {m: t for m, t in self._totals.items() if m in models}

    def _of(self, model: str) -> _Totals:
        totals = self._totals.get(model)
        if totals is None:
            totals = self._totals[model] = _Totals()
        return totals


def _count(counts: dict[int, int], target_s: float) -> None:
    step = math.floor(math.log(min(max(target_s, _LEAST_S), _MOST_S)) / math.log(_STEP) + 1e-9)
    counts[step] = counts.get(step, 0) + 1


def _told(counts: dict[int, int]) -> tuple[TargetCount, ...]:
    return tuple(TargetCount(target_s=_STEP**step, requests_total=n) for step, n in sorted(counts.items()))
