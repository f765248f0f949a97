"""A latency model of an engine that cannot fuse prompts into decode steps."""

from collections.abc import Sequence

from profiler.latency import ChunkShape, LatencyModel
from profiler.specs import ModelSpec


class UnfusedLatency:
    """Implements profiler.latency.LatencyModel. A fused step never ends: no target admits one."""

    def __init__(self, latency: LatencyModel) -> None:
        self._latency = latency

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return self._latency.prefill_s(spec, chunks, sms)

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return self._latency.decode_s(spec, context_tokens, sms)

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        return float("inf")
