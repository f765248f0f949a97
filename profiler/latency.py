"""The questions that policies, the planner and the simulator ask about time."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from profiler.specs import ModelSpec

Floats = npt.NDArray[np.float64]


class ChunkShape(msgspec.Struct, frozen=True, gc=False):
    """New prompt tokens of one sequence on top of `context_tokens` that already have KV.

    A Struct, since several are made per decision (a frozen dataclass takes five times as long).
    """

    new_tokens: int
    context_tokens: int = 0


class LatencyModel(Protocol):
    """Solo-run latencies in seconds on `sms` SMs (cores on a CPU) of each device of the mesh the model was made for."""

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        """All layers and the sampling of one token per chunk."""
        ...

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        """One step of a batch whose sequences hold `context_tokens` of KV each."""
        ...

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        """One fused step of prefill chunks and decoding sequences (chunked prefill)."""
        ...


@runtime_checkable
class OverlappingLatency(Protocol):
    """A latency model that knows a step's operators, and what they take when those of several nano-batches overlap."""

    def overlapped_s(
        self,
        spec: ModelSpec,
        chunks: Sequence[ChunkShape],
        context_tokens: Sequence[int],
        sms: int,
        *,
        nano_batches: int,
    ) -> float:
        """`mixed_s` of a batch that is cut into so many nano-batches (profiler/nano_batches.py)."""
        ...


def overlapped_s(
    latency: LatencyModel,
    spec: ModelSpec,
    chunks: Sequence[ChunkShape],
    context_tokens: Sequence[int],
    sms: int,
    *,
    nano_batches: int,
) -> float:
    """Predicts as `OverlappingLatency.overlapped_s` does; with a model that knows no operators the step without
    overlap.
    """
    if nano_batches > 1 and isinstance(latency, OverlappingLatency):
        return latency.overlapped_s(spec, chunks, context_tokens, sms, nano_batches=nano_batches)
    return latency.mixed_s(spec, chunks, context_tokens, sms)


@runtime_checkable
class SharewiseLatency(Protocol):
    """A latency model that can be asked for one batch on share after share, and looks at the batch once."""

    def decode_by_share(self, spec: ModelSpec, context_tokens: Sequence[int]) -> Callable[[int], float]:
        """`decode_s` of this batch by SMs."""
        ...


def decode_by_share(latency: LatencyModel) -> Callable[[ModelSpec, Sequence[int]], Callable[[int], float]]:
    """Predicts as `SharewiseLatency.decode_by_share` does, with any latency model."""
    if isinstance(latency, SharewiseLatency):
        return latency.decode_by_share
    return lambda spec, context_tokens: partial(latency.decode_s, spec, context_tokens)
