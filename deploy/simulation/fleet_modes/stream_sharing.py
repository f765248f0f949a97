"""Two streams of one GPU without a partition: each has half of the SMs while the other works."""

from collections.abc import Callable, Sequence

from profiler.latency import ChunkShape, LatencyModel
from profiler.specs import ModelSpec


class StreamShared:
    """`LatencyModel` of launches beside another stream, judged when they start. Half is an assumption: kernels of
    two streams compete as they come.
    """

    def __init__(self, latency: LatencyModel, is_other_busy: Callable[[], bool]) -> None:
        self._latency = latency
        self._is_other_busy = is_other_busy

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return self._latency.prefill_s(spec, chunks, self._left(sms))

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return self._latency.decode_s(spec, context_tokens, self._left(sms))

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        return self._latency.mixed_s(spec, chunks, context_tokens, self._left(sms))

    def _left(self, sms: int) -> int:
        return max(1, sms // 2) if self._is_other_busy() else sms
