"""A mixture of experts on several GPUs of which each has all but the experts to itself (data and expert parallel).

Every rank keeps its own requests and their KV. Before its experts' GEMMs come the tokens of all ranks, after them go
the sums back: so ranks step together, and a prompt on one of them keeps the others waiting. With E / R experts on each
of R alike ranks of n tokens, a rank computes k rows for each of its own tokens, in all the experts of its share that
any of R n tokens chose: E / R (1 - (1 - k / E)^(R n)), to 0.5 % what a model of E / R experts would read.
"""

from collections.abc import Sequence
from dataclasses import replace

from profiler.latency import ChunkShape, LatencyModel
from profiler.operator_costs import operator_costs
from profiler.specs import DeviceSpec, ModelSpec


def spec_of_rank(spec: ModelSpec, ranks: int) -> ModelSpec:
    """What one of `ranks` GPUs holds and computes for its own tokens."""
    return replace(spec, num_experts=spec.num_experts // ranks) if spec.is_moe else spec


class ExpertParallelLatency:
    """profiler.latency.LatencyModel of all ranks as one engine: sequences and chunks are theirs in turn."""

    def __init__(self, latency: LatencyModel, spec: ModelSpec, device: DeviceSpec, ranks: int) -> None:
        """`latency` is asked for the spec of a rank, `spec` is the whole model."""
        self._latency = latency
        self._ranks = ranks
        # All-gather before and reduce-scatter after the experts move as many bytes as one all-reduce of all tokens.
        costs = operator_costs(spec, device, ranks, device.num_sms)
        self._start_s = spec.num_moe_layers * costs.all_reduce_start_s
        self._per_token_s = spec.num_moe_layers * costs.all_reduce_s_per_token

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return self.mixed_s(spec, chunks, (), sms)

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return self.mixed_s(spec, (), context_tokens, sms)

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        tokens = sum(chunk.new_tokens for chunk in chunks) + len(context_tokens)
        slowest_s = max(
            self._latency.mixed_s(spec, chunks[rank :: self._ranks], context_tokens[rank :: self._ranks], sms)
            for rank in range(self._ranks)
        )
        return slowest_s + self._start_s + self._per_token_s * tokens
