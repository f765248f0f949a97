"""Reads an engine's step times off what clients of it saw: the first token of a prompt alone, and the pace of sequences
that decode together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profiler.latency import Floats
from profiler.measurement import Measurement, summarised
from profiler.probe import LaunchShape
from profiler.sweep import PlannedLaunch
from traces.outcome import Ending, RequestOutcome
from traces.record import TraceRecord

_ONE_STEP_TOKENS = 1024  # engines of today prefill so much in one step
_FEWEST_GAPS = 2  # between chunks, while all sequences of a rung decode
_SAME_DELIVERY = 0.5  # of a mean gap: chunks nearer than that came together
_SEVERAL = 1.5  # tokens a chunk and more: launches of several steps; fewer are characters that a chunk waited for
_TYPICAL = 0.25  # quantile, as of every measured launch
_LEAST_LEFT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """So many clients send a prompt at the same time, each its own. Held-out rungs are kept from fitting."""

    clients: int
    prompt_tokens: int
    output_tokens: int
    is_held_out: bool = False

    def records(self, model: str) -> list[TraceRecord]:
        one = TraceRecord(arrival_s=0.0, input_tokens=self.prompt_tokens, output_tokens=self.output_tokens, model=model)
        return [one] * self.clients

    def prompt(self, sms: int) -> LaunchShape:
        return LaunchShape(sms=sms, prompts=1, new_tokens=self.prompt_tokens)

    def step(self, sms: int) -> LaunchShape:
        return LaunchShape(sms=sms, sequences=self.clients, depth=self.prompt_tokens + self.output_tokens // 2)


# Short prompts show what a step costs at least, long ones the matrix rate, many and deep sequences the bandwidth. Those
# who start with long prompts have long answers, so that they decode together after the last prompt.
LADDER = (
    Rung(clients=1, prompt_tokens=1024, output_tokens=24),
    Rung(clients=1, prompt_tokens=64, output_tokens=24),
    Rung(clients=16, prompt_tokens=1024, output_tokens=160),
    Rung(clients=32, prompt_tokens=64, output_tokens=48),
    Rung(clients=1, prompt_tokens=512, output_tokens=24),
    Rung(clients=8, prompt_tokens=64, output_tokens=32),
    Rung(clients=1, prompt_tokens=768, output_tokens=24, is_held_out=True),
    Rung(clients=16, prompt_tokens=64, output_tokens=40, is_held_out=True),
    Rung(clients=8, prompt_tokens=1024, output_tokens=128, is_held_out=True),
    Rung(clients=1, prompt_tokens=256, output_tokens=24, is_held_out=True),
    Rung(clients=64, prompt_tokens=64, output_tokens=64),
    Rung(clients=8, prompt_tokens=2048, output_tokens=160),
    Rung(clients=1, prompt_tokens=128, output_tokens=24),
    Rung(clients=4, prompt_tokens=64, output_tokens=32, is_held_out=True),
    Rung(clients=2, prompt_tokens=1024, output_tokens=64),
)


def rungs_within(*, batch_tokens: int, sequences: int, sequence_tokens: int) -> tuple[Rung, ...]:
    """Returns the rungs whose prompt fits one step, if it is alone, and whose sequences may run together; coarse to
    fine.
    """
    return tuple(
        rung
        for rung in LADDER
        if (rung.clients > 1 or rung.prompt_tokens <= min(_ONE_STEP_TOKENS, batch_tokens))
        and rung.clients <= sequences
        and rung.prompt_tokens + rung.output_tokens <= sequence_tokens
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenLaunch:
    """Holds what clients saw of a launch, host and way included. `host_shares`: a launch that makes several tokens of
    each sequence has a part of the host's time in each step.
    """

    launch: LaunchShape
    timings_s: tuple[float, ...]
    host_shares: tuple[float, ...]
    is_held_out: bool

    @property
    def seconds(self) -> float:
        return float(np.quantile(self.timings_s, _TYPICAL))

    @property
    def host_share(self) -> float:
        return float(np.median(self.host_shares))

    def without(self, beside_s: float) -> Measurement:
        """Returns the launch less what is `beside_s`; a tenth of what was seen at the least."""
        alone_s = [max(_LEAST_LEFT * seconds, seconds - beside_s) for seconds in self.timings_s]
        return summarised(PlannedLaunch(launch=self.launch, is_held_out=self.is_held_out), alone_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    step_s: float
    host_share: float


def pace_of(outcomes: Sequence[RequestOutcome]) -> Pace | None:
    """Returns the time of one decode step of all these requests together; None where they hardly ran together."""
    if any(o.ending is not Ending.FINISHED or o.ttft_s is None or not o.gaps_s for o in outcomes):
        return None
    streams = [_arrivals(o) for o in outcomes]
    start_s, end_s = max(times[0] for times in streams), min(times[-1] for times in streams)
    gaps_s = [_gap_s(times[(times >= start_s) & (times <= end_s)]) for times in streams]
    tokens = [(o.output_tokens - 1) / len(o.gaps_s) for o in outcomes]  # a chunk brings those of so many steps
    if max(gaps_s) == np.inf or min(tokens) <= 0:
        return None
    step_s = float(np.median(np.array(gaps_s) / np.array(tokens)))
    per_launch = float(np.median(tokens))
    return Pace(step_s=step_s, host_share=1 / per_launch if per_launch >= _SEVERAL else 1.0)


class ServedSteps:
    """Collects what rungs showed, over several rounds of them."""

    def __init__(self, sms: int) -> None:
        self._sms = sms
        self._seen: dict[tuple[LaunchShape, bool], list[Pace]] = {}

    def add(self, rung: Rung, outcomes: Sequence[RequestOutcome]) -> None:
        """Takes nothing from a rung that did not run as it should have."""
        first = outcomes[0]
        if rung.clients == 1 and first.ending is Ending.FINISHED and first.ttft_s is not None:
            self._note(rung.prompt(self._sms), rung, Pace(step_s=first.ttft_s, host_share=1.0))
        pace = pace_of(outcomes)
        if pace is not None:
            self._note(rung.step(self._sms), rung, pace)

    def launches(self) -> tuple[SeenLaunch, ...]:
        return tuple(
            SeenLaunch(
                launch=launch,
                timings_s=tuple(p.step_s for p in paces),
                host_shares=tuple(p.host_share for p in paces),
                is_held_out=is_held_out,
            )
            for (launch, is_held_out), paces in self._seen.items()
        )

    def _note(self, launch: LaunchShape, rung: Rung, pace: Pace) -> None:
        self._seen.setdefault((launch, rung.is_held_out), []).append(pace)


def _arrivals(outcome: RequestOutcome) -> Floats:
    """Of chunks: one may bring the tokens of several steps."""
    assert outcome.ttft_s is not None
    return np.cumsum([outcome.sent_s + outcome.ttft_s, *outcome.gaps_s])


def _gap_s(times_s: Floats) -> float:
    """Mean of the gaps between chunks. Those that came together with the first one are of the step before it."""
    span_s = float(times_s[-1] - times_s[0]) if len(times_s) > _FEWEST_GAPS else 0.0
    if span_s <= 0:
        return np.inf
    return span_s / int((times_s > times_s[0] + _SAME_DELIVERY * span_s / (len(times_s) - 1)).sum())
