"""Decides whether a waiting prompt may overtake the prefill batch that is under way (MuxWise §3.4.2)."""

from pdmux_actor.scheduling.policies.base import UnitState
from pdmux_actor.scheduling.policies.forecast import batch_left_s, head_sequence, whole_prefill_s
from pdmux_actor.scheduling.sequence import Precedence


def preempting_model(state: UnitState, now_s: float, sms: int) -> str | None:
    """A model whose next prompt would miss its TTFT behind the batch, makes it before, and lets the batch make its own.

    A batch that will not make its own in any case has nothing to lose, and one that costs more requests their first
    token than it has itself goes behind them. Not recursive: a batch that has preempted is not preempted itself. Of
    several such prompts the most urgent.
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
        prefill_s = whole_prefill_s(state, model, [queue.chunk_shape(head)], sms)
        slack_s = head.first_token_due_s - now_s
        would_miss = remaining_s + prefill_s > slack_s >= prefill_s
        can_make_it = head.precedence is Precedence.FIRST or slack_s >= prefill_s
        goes_before = batch.is_put_back and head.precedence is not Precedence.LATE and can_make_it
        # What preempts cannot be preempted itself: a long prompt would hold up those for which the batch made way.
        is_bearable = remaining_s + prefill_s <= batch_slack_s if keeps_its_own else 2 * prefill_s <= remaining_s
        if (would_miss or goes_before) and is_bearable and slack_s < chosen_slack_s:
            chosen, chosen_slack_s = model, slack_s
    return chosen
