"""The token budget of chunked prefill, tuned offline to the TBT target as in Sarathi-Serve (arXiv:2403.02310)."""

from collections.abc import Sequence

from profiler.latency import ChunkShape, LatencyModel
from profiler.specs import DeviceSpec, ModelSpec

_BATCH, _CONTEXT_TOKENS = 32, 1024  # of the decode that the chunk rides on (MuxWise Fig. 6)
_BUDGETS_TOKENS = (8192, 6144, 4096, 3072, 2048, 1536, 1024, 768, 512, 384, 256, 192, 128)
_LEAST_TOKENS = 64


def tuned_chunk_budget(
    latency: LatencyModel,
    specs: Sequence[ModelSpec],
    device: DeviceSpec,
    tbt_s: float,
    *,
    host_s: float = 0.0,
    prompt_tokens: int = 0,
) -> int:
    """The largest budget whose fused step meets the target for every model of the unit, or else the least there is.

    `prompt_tokens` is the longest prompt that counts: its last chunk attends to all that came before.
    """
    contexts = [_CONTEXT_TOKENS] * _BATCH
    for budget in _BUDGETS_TOKENS:
        new_tokens = budget - _BATCH
        chunk = [ChunkShape(new_tokens, max(0, prompt_tokens - new_tokens))]
        if all(host_s + latency.mixed_s(spec, chunk, contexts, device.num_sms) <= tbt_s for spec in specs):
            return budget
    return _LEAST_TOKENS
