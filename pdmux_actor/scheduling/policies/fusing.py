"""Whether the next prompt is better fused into the decode step or prefilled beside it.

DuetServe aggregates unless that breaks the TBT target (§4.2), and then chooses the configuration with most tokens per
second (Algorithm 1). Here the aggregated step is one of the configurations: it must meet the target and yield no fewer
tokens per second, (N_p + N_d) / t_mixed, than side by side, N_p / t_p + N_d / t_d with t_p, t_d on their shares.
"""

from pdmux_actor.scheduling.policies.base import UnitState
from pdmux_actor.scheduling.policies.forecast import decode_cycle_s, head_sequence, whole_prefill_s
from pdmux_actor.scheduling.policies.side_by_side import share_beside
from pdmux_actor.scheduling.queues import ModelQueue
from profiler.latency import ChunkShape

# A fused step is predicted by its mean, and side by side is what remains to be done when it would be close.
_SHARE_OF_TARGET = 0.9


def fused_tokens(state: UnitState, model: str, now_s: float) -> int | None:
    """Tokens of the fused step that takes the model's next prompt, if that is the better choice."""
    queue = state.queues[model]
    shape = queue.chunk_shape(head_sequence(queue))
    tokens = shape.new_tokens + len(queue.running)
    if not queue.running or tokens > state.settings.max_batch_tokens:
        return None
    mixed_s = state.predictor.mixed_s(model, queue.info.spec, [shape], queue.context_tokens, state.total_sms)
    if not _meets_targets(state, queue, mixed_s, now_s) or not _pays(state, queue, shape, mixed_s):
        return None
    return tokens


def _meets_targets(state: UnitState, queue: ModelQueue, mixed_s: float, now_s: float) -> bool:
    """Of all models: the others decode after the fused step."""
    others = [q for q in state.decoding() if q is not queue]
    cycle_s = mixed_s + decode_cycle_s(state, others, state.total_sms)
    until_s = [(mixed_s, queue), *((cycle_s, q) for q in others)]
    return all(q.wait_s(now_s) + next_s <= _SHARE_OF_TARGET * q.tightest_tbt_s for next_s, q in until_s)


def _pays(state: UnitState, queue: ModelQueue, shape: ChunkShape, mixed_s: float) -> bool:
    decoding = [queue]
    share = share_beside(state, queue.model, decoding)
    if share is None:
        return True  # there is no side by side on a single SM
    t_d = decode_cycle_s(state, decoding, share, beside=[shape])
    t_p = whole_prefill_s(state, queue.model, [shape], state.total_sms - share)
    if t_d > queue.tightest_tbt_s or t_d <= 0 or t_p <= 0:
        return True
    num_decodes = len(queue.running)
    return (shape.new_tokens + num_decodes) / mixed_s >= shape.new_tokens / t_p + num_decodes / t_d
