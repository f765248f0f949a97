"""What two light points of an engine teach of it, as a short run would: how much longer its prefills and its decode
steps take than operators say, and the way of a first token. Every other point stays for the verdict.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from accuracy.silicon_points import SiliconPoint

from profiler.latency import ChunkShape, LatencyModel
from profiler.specs import ModelSpec

_ROUNDS = 6  # each comes nearer: waits for a step are part of a first token
_LEAST, _MOST = 0.3, 3.0  # of a factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """Factors on prefills and decode steps; `way_s` comes before and after the engine's work on a first token."""

    prefill: float = 1.0
    decode: float = 1.0
    way_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TaughtLatency:
    """Implements profiler.latency.LatencyModel."""

    latency: LatencyModel
    lesson: Lesson

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return self.lesson.prefill * self.latency.prefill_s(spec, chunks, sms)

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return self.lesson.decode * self.latency.decode_s(spec, context_tokens, sms)

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        """By what each phase would take alone."""
        apart_s = self.latency.prefill_s(spec, chunks, sms) + self.latency.decode_s(spec, context_tokens, sms)
        taught_s = self.prefill_s(spec, chunks, sms) + self.decode_s(spec, context_tokens, sms)
        return self.latency.mixed_s(spec, chunks, context_tokens, sms) * taught_s / apart_s


def light_points(points: Sequence[SiliconPoint]) -> tuple[SiliconPoint, SiliconPoint]:
    """Those of a mesh with the fewest clients: the shortest prompts, and the longest."""
    fewest = min(p.clients for p in points)
    by_shape = sorted((p for p in points if p.clients == fewest), key=lambda p: (p.prompt_tokens, -p.output_tokens))
    return by_shape[0], by_shape[-1]


def learned(
    short: SiliconPoint, long: SiliconPoint, predicted: Callable[[SiliconPoint, Lesson], tuple[float, float]]
) -> Lesson:
    """`predicted`: TTFT and TPOT (s) of a point by what was learned so far."""
    lesson = Lesson()
    for _ in range(_ROUNDS):
        (short_s, short_tpot_s), (long_s, long_tpot_s) = predicted(short, lesson), predicted(long, lesson)
        decode = (short.tpot_s / short_tpot_s + long.tpot_s / long_tpot_s) / 2
        prefill = 1.0
        if long.prompt_tokens > short.prompt_tokens and long_s > short_s:
            prefill = (long.ttft_s - short.ttft_s) / (long_s - short_s)
        way_s = (short.ttft_s - short_s + long.ttft_s - long_s) / 2
        lesson = Lesson(
            prefill=_bounded(lesson.prefill * prefill),
            decode=_bounded(lesson.decode * decode),
            way_s=max(0.0, lesson.way_s + way_s / 2),
        )
    return lesson


def of_other_gpus(lessons: Sequence[Lesson]) -> Lesson:
    """What an engine shows on other GPUs. Its decode steps are left to the tables: they are the GPU's memory and the
    weights' format, where prefills and a first token's way have more of the engine in them.
    """
    return Lesson(
        prefill=statistics.geometric_mean(lesson.prefill for lesson in lessons),
        way_s=statistics.fmean(lesson.way_s for lesson in lessons),
    )


def _bounded(factor: float) -> float:
    return min(max(factor, _LEAST), _MOST)
