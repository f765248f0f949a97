"""What launches take in service beyond their solo times: learned from runs of an engine, to simulate another.

A launch that serves shares its cores with the threads that plan and deliver, and its batch is never quite one that was
timed alone. The ratio of the two varies from launch to launch; a simulation draws it from those that were seen of the
same kind and about the same length.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from engines.lane_activity import LaneActivity, LaneSpan

from pdmux_actor.scheduling.launch import Lane
from profiler.latency import ChunkShape, LatencyModel
from profiler.specs import ModelSpec

_ALONE, _BESIDE = 0.1, 0.9  # share of its time in company, for a launch to tell of either case
_FEWEST = 12  # launches that a distribution is drawn from
_LONGEST_HOST_S = 0.005  # a longer pause between two launches is one without work
_PHASES: Mapping[str, str] = {"prefill": "prefill", "decode": "decode", "look-ahead": "decode"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSteps:
    """`ratios` are measured / solo of launches alone, by phase and octave of the solo time, and by phase (octave None).

    `*_slowdown`: mean ratio beside the other lane over that alone. `host_s`: median pause of a lane that has work.
    """

    ratios: Mapping[tuple[str, int | None], tuple[float, ...]]
    prefill_slowdown: float
    decode_slowdown: float
    host_s: float

    @classmethod
    def of(cls, activity: LaneActivity) -> "ServedSteps":
        """Of runs whose spans were modelled."""
        alone: dict[tuple[str, int | None], list[float]] = defaultdict(list)
        beside: dict[str, list[float]] = defaultdict(list)
        for span, company in zip(activity.spans, activity.companies(), strict=True):
            if span.modelled_s <= 0:
                continue
            phase, ratio = _phase(span), span.length_s / span.modelled_s
            if company <= _ALONE:
                alone[phase, None].append(ratio)
                alone[phase, _octave(span.modelled_s)].append(ratio)
            elif company >= _BESIDE:
                beside[phase].append(ratio)
        pauses = [
            later.started_s - earlier.finished_s
            for lane in Lane
            for earlier, later in activity.pairs(lane)
            if later.started_s - earlier.finished_s < _LONGEST_HOST_S
        ]
        return cls(
            ratios={key: tuple(values) for key, values in alone.items() if len(values) >= _FEWEST},
            prefill_slowdown=_slowdown(beside["prefill"], alone["prefill", None], alone["decode", None]),
            decode_slowdown=_slowdown(beside["decode"], alone["decode", None], alone["prefill", None]),
            host_s=float(np.median(pauses)) if pauses else 0.0,
        )


class ServedLatency:
    """profiler.latency.LatencyModel: solo times, each with a ratio that was seen. Draws are the same in every run."""

    def __init__(self, solo: LatencyModel, served: ServedSteps, *, seed: int = 0) -> None:
        self._solo = solo
        self._served = served
        self._rng = np.random.default_rng(seed)

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return self._served_s("prefill", self._solo.prefill_s(spec, chunks, sms))

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return self._served_s("decode", self._solo.decode_s(spec, context_tokens, sms))

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        phase = "mixed" if chunks else "decode"
        return self._served_s(phase, self._solo.mixed_s(spec, chunks, context_tokens, sms))

    def _served_s(self, phase: str, solo_s: float) -> float:
        known = self._served.ratios
        for key in ((phase, _octave(solo_s)), (phase, None), ("decode", None)):
            if key in known:
                return solo_s * known[key][int(self._rng.integers(len(known[key])))]
        return solo_s


def _phase(span: LaneSpan) -> str:
    return _PHASES.get(span.kind, "mixed")


def _octave(seconds: float) -> int:
    return math.floor(math.log2(seconds)) if seconds > 0 else 0


def _slowdown(beside: Sequence[float], alone: Sequence[float], stand_in: Sequence[float]) -> float:
    """1 where too few were seen."""
    base = alone if len(alone) >= _FEWEST else stand_in
    if len(beside) < _FEWEST or len(base) < _FEWEST:
        return 1.0
    return max(1.0, float(np.mean(beside) / np.mean(base)))
