"""Whether the next prompt is better fused into the decode step or prefilled beside it.

DuetServe aggregates unless that breaks the TBT target (§4.2), and then chooses the configuration with most tokens per
second (Algorithm 1). Here the aggregated step is one of the configurations: it must meet the target, and delay requests
no more than side by side does on any share (balance.py). Tokens per second would count one of a prompt, of which there
are many at once, as much as one of an answer.
"""

from pdmux_actor.scheduling.policies.balance import Delays, choices
from pdmux_actor.scheduling.policies.base import UnitState
from pdmux_actor.scheduling.policies.forecast import decode_cycle_s, head_sequence, tightest_tbt_s
from pdmux_actor.scheduling.policies.side_by_side import share_beside
from pdmux_actor.scheduling.queues import ModelQueue
from profiler.latency import ChunkShape

# A fused step is predicted by its mean, and side by side is what remains to be done when it would be close.
_SHARE_OF_TARGET = 0.9


def fused_tokens(state: UnitState, model: str, load: float, now_s: float) -> int | None:
    """Tokens of the fused step that takes the model's next prompt, if that is better. `load` is the prefill lane's."""
    queue = state.queues[model]
    shape = queue.chunk_shape(head_sequence(queue))
    tokens = shape.new_tokens + len(queue.running)
    if not queue.running or tokens > state.settings.max_batch_tokens:
        return None
    mixed_s = state.predictor.mixed_s(model, queue.info.spec, [shape], queue.context_tokens, state.total_sms)
    if not _meets_targets(state, queue, mixed_s, now_s) or not _pays(state, queue, shape, mixed_s, load):
        return None
    return tokens


def _meets_targets(state: UnitState, queue: ModelQueue, mixed_s: float, now_s: float) -> bool:
    """Of all models: the others decode after the fused step."""
    others = [q for q in state.decoding() if q is not queue]
    cycle_s = mixed_s + decode_cycle_s(state, others, state.total_sms)
    until_s = [(mixed_s, queue), *((cycle_s, q) for q in others)]
    return all(q.wait_s(now_s) + next_s <= _SHARE_OF_TARGET * q.tightest_tbt_s for next_s, q in until_s)


def _pays(state: UnitState, queue: ModelQueue, shape: ChunkShape, mixed_s: float, load: float) -> bool:
    decoding = state.decoding()
    share = share_beside(state, queue.model, decoding)
    if share is None:
        return True  # there is no side by side on a single SM
    if decode_cycle_s(state, decoding, share, beside=[shape]) > tightest_tbt_s(decoding):
        return True
    delays = Delays(state, queue.model, [shape], decoding, share, load)
    fused_s = delays.in_all_s(mixed_s, mixed_s - decode_cycle_s(state, [queue], state.total_sms))
    return all(fused_s <= delays.beside_s(s) for s in choices(state, share))
