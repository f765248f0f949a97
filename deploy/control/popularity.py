"""Learns what clients ask for, from what gateways counted."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce

from deploy.control.control_state import KeptDemand
from deploy.control.rate_estimate import BurstEstimate, RateEstimate, RateTuning
from deploy.control.target_learning import AttainmentWatch, TargetLearning
from placement.demand import ModelDemand
from router.admission.demand_report import DemandReport, ModelAsked, added

_BIN_S = 5.0
_LENGTH_MEMORY = 50.0  # requests
_FORGET_GATEWAY_S = 60.0
_GATEWAY_QUIET_S = 5.0  # they report twice a second; those that wait for news are heard once a second
_ALL_QUIET_S = 2.0  # nothing is averaged before one is heard again


@dataclass(slots=True, eq=False)
class _Asked:
    """One model: its rate, bursts and mean lengths, all that were `counted`, and what has not been averaged yet: `late`
    of its requests came before the time that is averaged now, and were told when their gateway could do so again.
    """

    rate: RateEstimate
    prompt_tokens: float
    output_tokens: float
    bursts: BurstEstimate
    targets: TargetLearning = field(default_factory=TargetLearning)
    counted: int = 0
    requests: int = 0
    late: int = 0
    prompts: int = 0
    outputs: int = 0
    last_asked_s: float | None = None


@dataclass(slots=True, eq=False)
class _Gateway:
    heard_s: float
    models: Mapping[str, ModelAsked]


@dataclass(slots=True, eq=False)
class _Bin:
    """What is averaged at once: `length_s` of a clock that stood for `stood_s` meanwhile."""

    start_s: float
    length_s: float = _BIN_S
    stood_s: float = 0.0

    def extend(self, now_s: float, stood_s: float) -> None:
        """Gateways tell only in the next seconds what they were asked for while the clock stood."""
        self.stood_s += stood_s
        # Not for ever: it may stand again and again.
        self.length_s = min(now_s - self.start_s, _BIN_S) + _BIN_S

    def await_others(self, now_s: float) -> None:
        """One of those that all were silent is heard again; the others are, in the next seconds."""
        if self.length_s == _BIN_S:  # not for ever: they may be silent again and again
            self.length_s = now_s - self.start_s + _BIN_S


class Popularity:
    """Tell it the models' prior demand, then what gateways report. `stood_s` returns for how long in all the clock of
    its times has stood: gateways go on counting.
    """

    def __init__(self, stood_s: Callable[[], float] = lambda: 0.0) -> None:
        self._stood_s = stood_s
        self._seen_stood_s = stood_s()
        self._tuning = RateTuning()
        self._models: dict[str, _Asked] = {}
        self._gateways: dict[str, _Gateway] = {}
        self._attainment = AttainmentWatch()
        self._bin: _Bin | None = None
        self._before: dict[str, KeptDemand] = {}
        self.heard_s: float | None = None

    def expect(self, priors: Iterable[ModelDemand]) -> None:
        """Models that are new start with their prior; those that are gone are forgotten; the others go on."""
        known = {p.model: p for p in priors}
        self._models = {m: a for m, a in self._models.items() if m in known}
        for model, prior in known.items():
            if model not in self._models:
                rate = RateEstimate(prior.rate_per_s, self._tuning)
                self._models[model] = _Asked(
                    rate, prior.prompt_tokens, prior.output_tokens, BurstEstimate(prior.arrival_cv)
                )
                self._restore_model(model, rate)

    def kept(self) -> tuple[KeptDemand, ...]:
        return tuple(
            KeptDemand(
                model=name,
                rate_per_s=asked.rate.per_s,
                known_for_s=asked.rate.known_for_s,
                prompt_tokens=asked.prompt_tokens,
                output_tokens=asked.output_tokens,
                last_asked_s=asked.last_asked_s,
                targets=asked.targets.mix,
                arrival_cv=asked.bursts.cv,
            )
            for name, asked in sorted(self._models.items())
        )

    def restore(self, demand: Iterable[KeptDemand]) -> None:
        """Takes what was learned before in place of the prior, for models that are told of later."""
        self._before = {d.model: d for d in demand}

    def _restore_model(self, model: str, rate: RateEstimate) -> None:
        before = self._before.pop(model, None)
        if before is None:
            return
        rate.per_s, rate.known_for_s = before.rate_per_s, before.known_for_s
        asked = self._models[model]
        asked.prompt_tokens, asked.output_tokens = before.prompt_tokens, before.output_tokens
        asked.last_asked_s, asked.targets = before.last_asked_s, TargetLearning(before.targets)
        if before.arrival_cv is not None:
            asked.bursts = BurstEstimate(before.arrival_cv)

    def hear(self, report: DemandReport, now_s: float) -> None:
        """Takes in a gateway's counts. When a gateway reports for the first time, only later requests count: it may be
        older than this process.
        """
        before = self._gateways.get(report.gateway_id)
        if self._bin is not None and self.heard_s is not None and now_s - self.heard_s > _ALL_QUIET_S:
            self._bin.await_others(now_s)
        self._gateways[report.gateway_id] = _Gateway(now_s, {m.model: m for m in report.models})
        self.heard_s = now_s
        self._gateways = {i: g for i, g in self._gateways.items() if now_s - g.heard_s <= _FORGET_GATEWAY_S}
        for asked in report.models:
            model = self._models.get(asked.model)
            if model is None:
                continue
            if asked.waiting or asked.held:
                model.last_asked_s = now_s
            if before is not None:
                last = _comparable(before.models.get(asked.model), asked)
                _count(model, last, asked, now_s)
                model.late += round(
                    self._late_part(before.heard_s, now_s) * (asked.requests_total - last.requests_total)
                )
                self._attainment.count(last, asked)

    def _late_part(self, since_s: float, now_s: float) -> float:
        """Returns the part of what a gateway counted since then that came before what is averaged now; 0 for one that
        tells as often as it should.
        """
        if self._bin is None or now_s - since_s <= _GATEWAY_QUIET_S:
            return 0.0
        return max(0.0, self._bin.start_s - since_s) / (now_s - since_s)

    def hear_waiting(self, gateway_id: str, now_s: float) -> None:
        """Notes that a gateway is there that has nothing to report."""
        if (gateway := self._gateways.get(gateway_id)) is not None:
            gateway.heard_s = self.heard_s = now_s

    def num_gateways(self, now_s: float) -> int:
        """Returns how many gateways were heard from lately, at least one."""
        return max(1, sum(now_s - g.heard_s <= _GATEWAY_QUIET_S for g in self._gateways.values()))

    def advance(self, now_s: float) -> frozenset[str]:
        """Averages what was counted; the models whose rate has jumped. Without reports nothing is learnt."""
        before_s, self._seen_stood_s = self._seen_stood_s, self._stood_s()
        current = self._bin
        if current is None or self.heard_s is None or now_s - self.heard_s > _FORGET_GATEWAY_S:
            self._bin = _Bin(now_s)
            return frozenset()
        if self._seen_stood_s > before_s:
            current.extend(now_s, self._seen_stood_s - before_s)
        span_s = now_s - current.start_s
        if span_s < current.length_s or now_s - self.heard_s > _ALL_QUIET_S:
            return frozenset()
        self._bin, span_s = _Bin(now_s), span_s + current.stood_s
        return frozenset(name for name, model in self._models.items() if _average(model, span_s))

    def news(self, now_s: float) -> str | None:
        """Advances, and says why demand should be looked at now, if it should."""
        jumped = self.advance(now_s)
        told = (f"demand for {', '.join(sorted(jumped))} jumped",) if jumped else ()
        return "; ".join((*told, *self._attainment.fallen())) or None

    def demand(self, model: str) -> ModelDemand:
        asked = self._models[model]
        return ModelDemand(
            model=model,
            rate_per_s=asked.rate.per_s,
            prompt_tokens=max(1.0, asked.prompt_tokens),
            output_tokens=max(1.0, asked.output_tokens),
            arrival_cv=asked.bursts.cv,
            targets=asked.targets.mix,
        )

    def counted(self, model: str) -> int:
        """Returns how many requests were heard of."""
        return self._models[model].counted

    def asked(self, model: str, now_s: float) -> ModelAsked | None:
        """Returns the sum of what gateways that were heard from lately count of a model."""
        quiet_s = now_s - _GATEWAY_QUIET_S
        told = [g.models[model] for g in self._gateways.values() if g.heard_s >= quiet_s and model in g.models]
        return reduce(added, told) if told else None

    def last_asked_s(self, model: str) -> float | None:
        """None: never since this control loop started."""
        return self._models[model].last_asked_s


def _comparable(before: ModelAsked | None, asked: ModelAsked) -> ModelAsked:
    """Totals that shrink are those of a model that was withdrawn and offered again."""
    if before is None or asked.requests_total < before.requests_total:
        return ModelAsked(model=asked.model, requests_total=0, prompt_tokens_total=0, output_tokens_total=0)
    return before


def _count(model: _Asked, before: ModelAsked, asked: ModelAsked, now_s: float) -> None:
    model.requests += asked.requests_total - before.requests_total
    model.counted += asked.requests_total - before.requests_total
    model.prompts += asked.prompt_tokens_total - before.prompt_tokens_total
    model.outputs += asked.output_tokens_total - before.output_tokens_total
    model.targets.count(before, asked)
    if asked.requests_total > before.requests_total:
        model.last_asked_s = now_s


def _average(model: _Asked, span_s: float) -> bool:
    requests, on_time = model.requests, model.requests - model.late
    jumped = model.rate.add(on_time, span_s)
    model.bursts.add(on_time, span_s, model.rate.per_s)
    model.targets.average(requests)
    if requests:
        weight = 1 - math.exp(-requests / _LENGTH_MEMORY)
        model.prompt_tokens += weight * (model.prompts / requests - model.prompt_tokens)
        model.output_tokens += weight * (model.outputs / requests - model.output_tokens)
        model.requests = model.late = model.prompts = model.outputs = 0
    return jumped
