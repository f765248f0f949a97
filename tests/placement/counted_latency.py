"""A latency model for sums by hand: whole milliseconds a prompt, a step and a sequence, by the share of the SMs."""

from collections.abc import Sequence

from placement.estimation.problem_arrays import Estimator
from profiler.latency import ChunkShape, LatencyModel
from profiler.specs import DeviceSpec, ModelSpec


class CountedLatency:
    """A prompt takes 20 ms, a step 9 ms and 1 ms for each sequence, on all SMs of one GPU; of two GPUs half of that."""

    def __init__(self, device: DeviceSpec, num_gpus: int) -> None:
        self._speed = num_gpus / device.num_sms

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return 0.02 * len(chunks) / (self._speed * sms)

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return (0.009 + 0.001 * len(context_tokens)) / (self._speed * sms)

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        return self.prefill_s(spec, chunks, sms) + self.decode_s(spec, context_tokens, sms)


def _counted(device: DeviceSpec, num_gpus: int) -> LatencyModel:
    return CountedLatency(device, num_gpus)


COUNTED = Estimator(latency_of=_counted, host_s=0.0)
