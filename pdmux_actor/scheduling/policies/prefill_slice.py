"""Chooses which prompts the next slice of prefill takes, and how many of their layers."""

import math

from pdmux_actor.scheduling.batching import preview_chunks
from pdmux_actor.scheduling.policies.base import UnitState
from pdmux_actor.scheduling.policies.forecast import batch_left_s, head_sequence, whole_prefill_s
from pdmux_actor.scheduling.sequence import Precedence

_LONGEST_SLICE_STEPS = 1.5


def layers_per_slice(decode_s: float, prefill_s: float, num_layers: int) -> int:
    """N_PL = ceil(T_d * N_T / T_P), at least 1 and at most N_T (MuxWise §3.4.1).

    The slice then lasts about as long as the decode work beside it, so neither lane waits for the other.

    >>> layers_per_slice(decode_s=0.02, prefill_s=0.4, num_layers=32)
    2
    >>> layers_per_slice(decode_s=1.0, prefill_s=0.4, num_layers=32)
    32
    """
    if prefill_s <= 0:
        return num_layers
    return max(1, min(num_layers, math.ceil(decode_s * num_layers / prefill_s)))


def layers_within(decode_s: float, prefill_s: float, num_layers: int) -> int:
    """N_PL, but no more layers than take one and a half times `decode_s`, unless that is less than one.

    Rounding up makes a slice of two layers that take 0.9 decode steps each: nothing else can start meanwhile.

    >>> layers_within(decode_s=1.0, prefill_s=28.8, num_layers=32), layers_per_slice(1.0, 28.8, 32)
    (1, 2)
    >>> layers_within(decode_s=1.0, prefill_s=13.0, num_layers=32)
    3
    """
    longest = num_layers if prefill_s <= 0 else int(_LONGEST_SLICE_STEPS * decode_s * num_layers / prefill_s)
    return max(1, min(longest, layers_per_slice(decode_s, prefill_s, num_layers)))


def preempting_model(state: UnitState, now_s: float, sms: int) -> str | None:
    """A model whose next prompt would miss its TTFT behind the batch, makes it before, and lets the batch make its own.

    A batch that will not make its own in any case has nothing to lose, and one that costs more requests their first
    token than it has itself goes behind them; one that gives way does so to any prompt. Not recursive: a batch that has
    preempted is not preempted itself. Of several such prompts the most urgent.
    """
    batch = state.batch
    if not state.settings.preempt_prefill or batch is None or state.suspended is not None or batch.in_flight:
        return None
    remaining_s = batch_left_s(state, sms)
    batch_slack_s = batch.first_token_due_s - now_s
    keeps_its_own = remaining_s <= batch_slack_s and not batch.is_put_back
    chosen, chosen_slack_s = None, float("inf")
    for model in state.prefillable_models():
        queue = state.queues[model]
        head = head_sequence(queue)
        if head.gives_way:
            continue
        prefill_s = whole_prefill_s(state, model, [queue.chunk_shape(head)], sms)
        slack_s = head.first_token_due_s - now_s
        would_miss = remaining_s + prefill_s > slack_s >= prefill_s
        can_make_it = head.precedence is Precedence.FIRST or slack_s >= prefill_s
        goes_before = batch.is_put_back and head.precedence is not Precedence.LATE and can_make_it
        # What preempts cannot be preempted itself: a long prompt would hold up those for which the batch made way.
        is_bearable = remaining_s + prefill_s <= batch_slack_s if keeps_its_own else 2 * prefill_s <= remaining_s
        may_preempt = batch.gives_way or ((would_miss or goes_before) and is_bearable)
        if may_preempt and slack_s < chosen_slack_s:
            chosen, chosen_slack_s = model, slack_s
    return chosen


# A prompt joins a batch that saves at least this share of the prompt's own time. Where prefill is compute-bound a batch
# saves nothing: its first prompts only wait for its last.
_LEAST_SAVING = 0.25


def prompts_worth_batching(state: UnitState, model: str, sms: int) -> int:
    """Returns how many of the next prompts gain by being one batch, at least 1."""
    shapes = preview_chunks(state.queues[model], state.settings, state.settings.max_batch_tokens, whole_prompts=True)
    batch_s = whole_prefill_s(state, model, shapes[:1], sms)
    for count in range(1, len(shapes)):
        longer_s = whole_prefill_s(state, model, shapes[: count + 1], sms)
        own_s = whole_prefill_s(state, model, shapes[count : count + 1], sms)
        if longer_s - batch_s > (1 - _LEAST_SAVING) * own_s:
            return count
        batch_s = longer_s
    return max(1, len(shapes))
