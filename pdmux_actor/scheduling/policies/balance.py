"""How many SMs decode keeps beside a prefill, of those that meet its target: so many that no lane holds the other up.

MuxWise (§3.4.1) gives decode the least share that meets the TBT target. Prefill is fastest then, and decode crawls for
as long as a prompt is in. Where answers are long decode is what limits the unit: batches and KV grow, and requests wait
for memory instead of for the prefill lane. On a share s of S SMs a prompt of model m takes T_P(S - s) of the prefill
lane, and of the decode lane

    o_m T_D,m(S) / b_m + L(s),    L(s) = T_P(S - s) (1 - T_D(S) / T_D(s))

its o_m tokens in batches of b_m, and what all sequences lose beside the prefill, however it is sliced (T_D is a step of
every model). The unit bears most requests where the larger of the two is least. L is flat around its minimum, near half
of the SMs for most batches. Prompts that queue for the lane, or would be late, take what they need, down to MuxWise's
share.
"""

from collections.abc import Mapping, Sequence

from pdmux_actor.scheduling.partition import decode_shares
from pdmux_actor.scheduling.policies.base import UnitState
from pdmux_actor.scheduling.policies.forecast import (
    DecodeCycle,
    decode_cycle_s,
    head_sequence,
    prefill_shapes,
    whole_prefill_s,
)
from pdmux_actor.scheduling.queues import ModelQueue

_CHOICES = 6
_PART_OF_SLACK = 0.1  # of the time that the next prompt has left: a queue that takes longer is one


def balanced_share(state: UnitState, prefilling: str, decoding: Sequence[ModelQueue], least: int, now_s: float) -> int:
    """`least` is the least share that meets the target; it stays until the model's answers have shown a length."""
    output_tokens = state.queues[prefilling].mean_output_tokens
    shares = [share for share in _choices(state) if share > least]
    if not shares or output_tokens is None:
        return least
    best = _least_costly(state, prefilling, decoding, (least, *shares), output_tokens)
    behind = _waiting_behind(state, prefilling)
    slower = [share for share in reversed(shares) if share <= best]
    return next((share for share in slower if _in_time(state, prefilling, behind, share, now_s)), least)


def _choices(state: UnitState) -> Sequence[int]:
    shares = decode_shares(state.device)
    step = max(1, -(-len(shares) // _CHOICES))
    return shares[step - 1 :: step]


def _least_costly(
    state: UnitState, model: str, decoding: Sequence[ModelQueue], shares: Sequence[int], output_tokens: float
) -> int:
    queue, prompt, all_sms = state.queues[model], prefill_shapes(state, model), state.total_sms
    cycle = DecodeCycle(state, decoding)
    alone_s = cycle.seconds(all_sms)
    # The same for every share: the guard knows some of them better than others, which is no reason to choose them.
    contention = DecodeCycle(state, decoding, beside=prompt).seconds(shares[0]) / cycle.seconds(shares[0])
    answer_s = float("inf")  # a model that does not decode now brings too few prompts to hold anybody up
    if queue.running:
        answer_s = output_tokens * decode_cycle_s(state, (queue,), all_sms) / len(queue.running)

    def cost(share: int) -> tuple[float, float]:
        prompt_s = whole_prefill_s(state, model, prompt, all_sms - share)
        lost_s = prompt_s * (1 - alone_s / max(alone_s, contention * cycle.seconds(share)))
        return max(prompt_s, answer_s + lost_s), lost_s

    return min(shares, key=cost)


def _waiting_behind(state: UnitState, prefilling: str) -> Mapping[str, int]:
    """Prompts that could start now, if the lane were free, behind the batch under way or the next prompt."""
    counts = {}
    for model in state.prefillable_models():
        queue = state.queues[model]
        rows = max(1, queue.rows_for(len(head_sequence(queue).token_ids)))
        places = state.settings.max_running_sequences - queue.num_resident
        count = len(queue.partial) + min(len(queue.waiting), queue.pool.allocatable_rows(model) // rows, places)
        counts[model] = max(1, count) - (state.batch is None and model == prefilling)
    return counts


def _in_time(state: UnitState, prefilling: str, behind: Mapping[str, int], share: int, now_s: float) -> bool:
    sms, batch = state.total_sms - share, state.batch
    next_s = whole_prefill_s(state, prefilling, prefill_shapes(state, prefilling), sms)
    if batch is None:
        due_s = head_sequence(state.queues[prefilling]).first_token_due_s
    else:
        next_s *= batch.layers_left / batch.num_layers
        due_s = min([chunk.sequence.first_token_due_s for chunk in batch.chunks])
    queued_s = 0.0
    for model, count in behind.items():
        queue = state.queues[model]
        shape = queue.chunk_shape(head_sequence(queue))
        queued_s += count * whole_prefill_s(state, model, [shape], sms)
        due_s = min(due_s, head_sequence(queue).first_token_due_s)
    slack_s = max(0.0, due_s - now_s)
    if queued_s > _PART_OF_SLACK * slack_s:
        return False
    return next_s <= slack_s or slack_s == 0
