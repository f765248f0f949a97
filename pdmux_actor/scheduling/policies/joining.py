"""How a sequence gets from its prefill into the decode batch without a gap beyond its target.

A sequence whose prefill ends while a decode step runs gets its second token after the rest of that step and a whole
one: a gap of up to two steps, which a target of 1.5 steps does not admit. MuxWise (§3.2.3) takes that: its targets are
several steps. Here two things avoid it where the targets ask for it and bear it:

- Decode waits for the last slice of a prefill if the running sequences' gaps bear what is left of it. With the slack
  s = target - step that is at most s; and a rest of more than step - s leaves the newcomers a gap within the target.
  From a target of 1.5 steps on, one of the two always holds, but for the margin.
- A last slice that would end too long before the decode step in flight does is held until that step ends, if the next
  step can wait for it then. Otherwise both would start together, the gap be no shorter and the prefill lane have idled:
  at its limit decode has no slack, and holding every prompt took a fifth of the prefill lane's time (MuxWise Fig. 17).
  Nor while other prompts wait: they would pay for the idle lane.
"""

from collections.abc import Sequence

from pdmux_actor.scheduling.policies.base import UnitState
from pdmux_actor.scheduling.policies.forecast import decode_cycle_s, prefill_shapes, tightest_tbt_s
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import Sequence as TokenSequence

_OVERDUE_SHARE = 0.1  # of a decode step: how much longer a slice is thought to take that should have ended
_MARGIN = 0.1  # on predictions, which are of the mean: at the limit half of the steps would come too late


def decode_waits(state: UnitState, decoding: Sequence[ModelQueue], sms: int, now_s: float) -> bool:
    """Whether a decode step is better started when the last slice in flight ends. That end wakes the scheduler."""
    batch = state.batch
    if batch is None or not batch.in_flight or not batch.on_last_slice:
        return False
    step_s = decode_cycle_s(state, decoding, sms, beside=batch.shapes)
    rest_s = max(state.prefill_lane.ends_s - now_s, _OVERDUE_SHARE * step_s)
    newcomers = [chunk.sequence for chunk in batch.chunks]
    return too_early(newcomers, step_s - rest_s, step_s) and _bear(decoding, rest_s + step_s, now_s)


def decode_lets_pass(
    newcomers: Sequence[TokenSequence],
    slice_s: float,
    decoding: Sequence[ModelQueue],
    step_s: float,
    now_s: float,
) -> bool:
    """The same, for a last slice that starts now with the decode step."""
    return too_early(newcomers, step_s - slice_s, step_s) and _bear(decoding, slice_s + step_s, now_s)


def last_slice_waits(
    state: UnitState, newcomers: Sequence[TokenSequence], slice_s: float, decoding: Sequence[ModelQueue], now_s: float
) -> bool:
    """Whether a last slice is better started when the decode step in flight ends. Not if that costs the TTFT."""
    model = newcomers[0].model
    step_s = decode_cycle_s(state, decoding, state.decode_lane.sms, beside=prefill_shapes(state, model))
    if (1 + _MARGIN) * (slice_s + step_s) > tightest_tbt_s(decoding):
        return False
    rest_s = state.decode_lane.ends_s - now_s
    due_s = min(sequence.first_token_due_s for sequence in newcomers)
    return too_early(newcomers, rest_s - slice_s, step_s) and now_s + rest_s + slice_s <= due_s


def too_early(newcomers: Sequence[TokenSequence], wait_s: float, step_s: float) -> bool:
    """Whether sequences that wait for `wait_s` before their first decode step have too long a gap."""
    return wait_s > 0 and (1 + _MARGIN) * (wait_s + step_s) > min(sequence.request.slo.tbt_s for sequence in newcomers)


def _bear(decoding: Sequence[ModelQueue], until_next_token_s: float, now_s: float) -> bool:
    at_worst_s = (1 + _MARGIN) * until_next_token_s
    return all(queue.wait_s(now_s) + at_worst_s <= queue.tightest_tbt_s for queue in decoding)
