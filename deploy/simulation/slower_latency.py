"""A device that takes longer than its figures say."""

from collections.abc import Sequence

from profiler.latency import ChunkShape, LatencyModel, overlapped_s
from profiler.specs import ModelSpec


class SlowerLatency:
    """Implements latency.LatencyModel: every launch takes `factor` times what another model says."""

    def __init__(self, latency: LatencyModel, factor: float) -> None:
        self._latency, self._factor = latency, factor

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return self._factor * self._latency.prefill_s(spec, chunks, sms)

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return self._factor * self._latency.decode_s(spec, context_tokens, sms)

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        return self._factor * self._latency.mixed_s(spec, chunks, context_tokens, sms)

    def overlapped_s(
        self,
        spec: ModelSpec,
        chunks: Sequence[ChunkShape],
        context_tokens: Sequence[int],
        sms: int,
        *,
        nano_batches: int,
    ) -> float:
        return self._factor * overlapped_s(self._latency, spec, chunks, context_tokens, sms, nano_batches=nano_batches)
