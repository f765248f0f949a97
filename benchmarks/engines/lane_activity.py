"""What ran on the lanes of a run, when, and how much of the time they stood idle."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pdmux_actor.executor.base import Executor, WarmingExecutor
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.launch import (
    ComputeLaunch,
    DecodeStep,
    DropPrefill,
    Lane,
    Launch,
    LaunchCompletion,
    MixedStep,
    PrefillSlice,
    Repartition,
)
from profiler.latency import LatencyModel
from profiler.specs import ModelSpec


@dataclass(frozen=True, slots=True)
class LaneSpan:
    """`tokens` are prompt tokens times the share of the layers, and decoded tokens. `modelled_s` is what the executor's
    `steps` say of the launch alone, 0 without them.
    """

    lane: Lane
    kind: str
    started_s: float
    finished_s: float
    prompt_tokens: float
    decode_tokens: int
    modelled_s: float = 0.0

    @property
    def length_s(self) -> float:
        return self.finished_s - self.started_s


@dataclass(slots=True)
class LaneActivity:
    spans: list[LaneSpan] = field(default_factory=list)

    def of(self, lane: Lane) -> list[LaneSpan]:
        return [span for span in self.spans if span.lane is lane]

    def busy_share(self, lane: Lane, duration_s: float) -> float:
        return sum(span.length_s for span in self.of(lane)) / duration_s

    def pairs(self, lane: Lane) -> Iterator[tuple[LaneSpan, LaneSpan]]:
        """Every launch of the lane with the next one."""
        return itertools.pairwise(sorted(self.of(lane), key=lambda span: span.started_s))

    def companies(self) -> list[float]:
        """Of every span, the share of its time in which the other lane was busy too."""
        shares = []
        for lane, other in ((Lane.PREFILL, Lane.DECODE), (Lane.DECODE, Lane.PREFILL)):
            edges = np.array([(s.started_s, s.finished_s) for s in sorted(self.of(other), key=lambda s: s.started_s)])
            for place, span in enumerate(self.spans):
                if span.lane is lane:
                    shares.append((place, _overlap_s(span, edges) / max(span.length_s, 1e-9)))
        return [share for _, share in sorted(shares)]

    def counts(self) -> dict[str, int]:
        """Launches by kind."""
        return dict(Counter(span.kind for span in self.spans))

    def bubble_ratio(self, lane: Lane, longest_wait_s: float) -> float | None:
        """Idle share between the lane's launches, in stretches where one follows another within `longest_wait_s`.

        Longer pauses are lack of work, not bubbles. None when the lane had fewer than two launches.
        """
        spans = self.of(lane)
        pauses = [later.started_s - earlier.finished_s for earlier, later in self.pairs(lane)]
        bubbles = sum(pause for pause in pauses if 0 < pause <= longest_wait_s)
        busy = sum(span.length_s for span in spans)
        return bubbles / (bubbles + busy) if len(spans) > 1 else None


def _overlap_s(span: LaneSpan, edges: npt.NDArray[np.float64]) -> float:
    """`edges` are starts and ends of spans that do not overlap each other, in order."""
    if not len(edges):
        return 0.0
    first, last = np.searchsorted(edges[:, 1], span.started_s), np.searchsorted(edges[:, 0], span.finished_s)
    met = edges[first:last]
    return float((np.minimum(met[:, 1], span.finished_s) - np.maximum(met[:, 0], span.started_s)).clip(0.0).sum())


class ObservedExecutor:
    """An executor that notes every completion. Implements executor.base.Executor."""

    def __init__(self, inner: Executor, steps: LatencyModel | None = None) -> None:
        self._inner = inner
        self._steps = steps
        self._partition = Repartition(prefill_sms=inner.device.num_sms, decode_sms=inner.device.num_sms)
        self._modelled_s: dict[Lane, float] = {}  # of the launches in flight
        self._specs: dict[str, ModelSpec] = {}
        self._activity: LaneActivity | None = None

    def start_recording(self) -> None:
        self._activity = LaneActivity()

    def stop_recording(self) -> LaneActivity:
        assert self._activity is not None
        activity, self._activity = self._activity, None
        return activity

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever else an executor has
        return getattr(self._inner, name)

    def attach_model(self, info: ModelInfo, row_table: npt.NDArray[np.int64]) -> None:
        self._specs[info.model] = info.spec
        self._inner.attach_model(info, row_table)

    def is_warming(self, model: str) -> bool:
        return isinstance(self._inner, WarmingExecutor) and self._inner.is_warming(model)

    def captures_left(self, model: str) -> int:
        return self._inner.captures_left(model) if isinstance(self._inner, WarmingExecutor) else 0

    def finish_captures(self) -> None:
        if isinstance(self._inner, WarmingExecutor):
            self._inner.finish_captures()

    def submit(self, launch: Launch) -> None:
        if isinstance(launch, Repartition):
            self._partition = launch
        elif self._steps is not None and not isinstance(launch, DropPrefill):
            self._modelled_s[launch.lane] = self._solo_s(self._steps, launch)
        self._inner.submit(launch)

    def wait(self, deadline_s: float | None) -> Sequence[LaunchCompletion]:
        done = self._inner.wait(deadline_s)
        if self._activity is not None:
            self._activity.spans += [self._span(completion) for completion in done]
        return done

    def _solo_s(self, steps: LatencyModel, launch: ComputeLaunch) -> float:
        spec = self._specs[launch.model]
        match launch:
            case PrefillSlice(chunks=chunks, first_layer=first, last_layer=last):
                whole_s = steps.prefill_s(spec, [c.shape for c in chunks], self._partition.prefill_sms)
                return whole_s * (last - first) / spec.num_layers
            case DecodeStep(sequences=sequences, steps=count):
                contexts = [len(s.token_ids) for s in sequences]
                return count * steps.decode_s(spec, contexts, self._partition.decode_sms)
            case MixedStep(chunks=chunks, sequences=sequences):
                contexts = [len(s.token_ids) for s in sequences]
                return steps.mixed_s(spec, [c.shape for c in chunks], contexts, self._partition.decode_sms)

    def _span(self, done: LaunchCompletion) -> LaneSpan:
        lane, prompt_tokens, decode_tokens = done.launch.lane, 0.0, 0
        match done.launch:
            case PrefillSlice(chunks=chunks, first_layer=first, last_layer=last, model=model):
                kind = "prefill"
                prompt_tokens = sum(chunk.length for chunk in chunks) * (last - first) / self._specs[model].num_layers
            case DecodeStep(sequences=sequences, steps=steps):
                kind = "decode" if steps == 1 else "look-ahead"
                decode_tokens = len(sequences) * steps
            case MixedStep(chunks=chunks, sequences=sequences):
                kind = "mixed" if chunks and sequences else "chunks" if chunks else "decode"
                prompt_tokens, decode_tokens = sum(chunk.length for chunk in chunks), len(sequences)
        modelled_s = self._modelled_s.pop(lane, 0.0)
        return LaneSpan(lane, kind, done.started_s, done.finished_s, prompt_tokens, decode_tokens, modelled_s)
