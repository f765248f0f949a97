"""The decode side of disaggregated engines: what comes over the link has its KV."""

from collections.abc import Sequence
from dataclasses import replace

from deploy.simulation.engine import EngineDesign
from profiler.latency import ChunkShape, LatencyModel
from profiler.specs import ModelSpec

_UNBOUNDED_TOKENS = 1 << 20


class DecodeOnlyLatency:
    """`LatencyModel` where a prompt's KV has come over the link: joining the batch costs a decode step, no prefill."""

    def __init__(self, latency: LatencyModel) -> None:
        self._latency = latency

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return self.mixed_s(spec, chunks, (), sms)

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return self._latency.decode_s(spec, context_tokens, sms)

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        arrived = [chunk.context_tokens + chunk.new_tokens for chunk in chunks]
        return self._latency.decode_s(spec, [*context_tokens, *arrived], sms)


def decode_only(design: EngineDesign) -> EngineDesign:
    """Returns the design of an engine that takes prompts with their KV, all at once into its next step."""
    return replace(
        design,
        policy="chunked_prefill",
        latency=DecodeOnlyLatency(design.latency),
        settings=replace(design.settings, chunk_budget_tokens=_UNBOUNDED_TOKENS),
    )
