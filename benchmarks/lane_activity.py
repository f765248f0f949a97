"""What ran on the lanes of a run, when, and how much of the time they stood idle."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pdmux_actor.executor.base import Executor
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.launch import Completion, DecodeStep, Lane, Launch, MixedStep, PrefillSlice, lane_of


@dataclass(frozen=True, slots=True)
class LaneSpan:
    """`tokens` are prompt tokens times the share of the layers, and decoded tokens."""

    lane: Lane
    kind: str
    started_s: float
    finished_s: float
    prompt_tokens: float
    decode_tokens: int

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

    def counts(self) -> dict[str, int]:
        """Launches by kind."""
        return dict(Counter(span.kind for span in self.spans))

    def bubble_ratio(self, lane: Lane, longest_wait_s: float) -> float | None:
        """Idle share between the lane's launches, in stretches where one follows another within `longest_wait_s`.

        Longer pauses are lack of work, not bubbles. None when the lane had fewer than two launches.
        """
        spans = sorted(self.of(lane), key=lambda span: span.started_s)
        pauses = [later.started_s - earlier.finished_s for earlier, later in itertools.pairwise(spans)]
        bubbles = sum(pause for pause in pauses if 0 < pause <= longest_wait_s)
        busy = sum(span.length_s for span in spans)
        return bubbles / (bubbles + busy) if len(spans) > 1 else None


class ObservedExecutor:
    """An executor that notes every completion. Implements executor.base.Executor."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.device = inner.device
        self.total_blocks = inner.total_blocks
        self.block_bytes = inner.block_bytes
        self.unpartitioned_reason = inner.unpartitioned_reason
        self._layers: dict[str, int] = {}
        self._activity: LaneActivity | None = None

    def start_recording(self) -> None:
        self._activity = LaneActivity()

    def stop_recording(self) -> LaneActivity:
        assert self._activity is not None
        activity, self._activity = self._activity, None
        return activity

    def now(self) -> float:
        return self._inner.now()

    def load_model(
        self, model: str, source: str, *, revision: str | None, dtype: str | None, max_model_len: int | None
    ) -> ModelInfo:
        return self._inner.load_model(model, source, revision=revision, dtype=dtype, max_model_len=max_model_len)

    def attach_model(self, info: ModelInfo, row_table: npt.NDArray[np.int64]) -> None:
        self._layers[info.model] = info.spec.num_layers
        self._inner.attach_model(info, row_table)

    def detach_model(self, model: str) -> None:
        self._inner.detach_model(model)

    def submit(self, launch: Launch) -> None:
        self._inner.submit(launch)

    def wait(self, deadline_s: float | None) -> Sequence[Completion]:
        done = self._inner.wait(deadline_s)
        if self._activity is not None:
            self._activity.spans += [self._span(completion) for completion in done]
        return done

    def wake(self) -> None:
        self._inner.wake()

    def close(self) -> None:
        self._inner.close()

    def _span(self, done: Completion) -> LaneSpan:
        lane, prompt_tokens, decode_tokens = lane_of(done.launch), 0.0, 0
        match done.launch:
            case PrefillSlice(chunks=chunks, first_layer=first, last_layer=last, model=model):
                kind = "prefill"
                prompt_tokens = sum(chunk.length for chunk in chunks) * (last - first) / self._layers[model]
            case DecodeStep(sequences=sequences, steps=steps):
                kind = "decode" if steps == 1 else "look-ahead"
                decode_tokens = len(sequences) * steps
            case MixedStep(chunks=chunks, sequences=sequences):
                kind = "mixed" if chunks and sequences else "chunks" if chunks else "decode"
                prompt_tokens, decode_tokens = sum(chunk.length for chunk in chunks), len(sequences)
        return LaneSpan(lane, kind, done.started_s, done.finished_s, prompt_tokens, decode_tokens)
