"""The one question policies ask about time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from profiler.specs import ModelSpec


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """New prompt tokens of one sequence on top of `context_tokens` that already have KV."""

    new_tokens: int
    context_tokens: int = 0


class LatencyModel(Protocol):
    """Solo-run latencies in seconds on `sms` SMs (cores on a CPU) of the device the model was made for."""

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        """All layers and the sampling of one token per chunk."""
        ...

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        """One step of a batch whose sequences hold `context_tokens` of KV each."""
        ...

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        """One fused step of prefill chunks and decoding sequences (chunked prefill)."""
        ...
