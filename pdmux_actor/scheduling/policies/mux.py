"""The default policy: aggregated, side by side or looking ahead, whichever the targets allow.

Models take turns for the prefill lane and decodes of all models fill the decode lane (MuxServe's ADBS). A prompt is
fused into the decode step while the fused step meets the TBT target (DuetServe §4.2: multiplexing pays only when
aggregation would break it). Otherwise both lanes run side by side with slices and preemption (MuxWise §3.4). When no
prompt waits, decode looks a few steps ahead (DuetServe §4.3).
"""

from collections.abc import Sequence

from pdmux_actor.scheduling.policies.base import Action, Mixed, UnitState
from pdmux_actor.scheduling.policies.forecast import decode_cycle_s, head_sequence, tightest_tbt_s
from pdmux_actor.scheduling.policies.side_by_side import SideBySide
from pdmux_actor.scheduling.queues import ModelQueue

# Look-ahead hands over its tokens together, so the gap before them is that of all its steps.
_LOOK_AHEAD_SHARE_OF_TARGET = 0.5
# A fused step is predicted by its mean, and side by side is what remains to be done when it would be close.
_FUSED_SHARE_OF_TARGET = 0.9


class Mux:
    name = "mux"

    def __init__(self) -> None:
        self._lanes = SideBySide(joins=True)

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        decoding = state.decoding()
        prefilling = self._lanes.next_prefill(state)
        if prefilling is None and state.idle and not any(q.waiting for q in state.queues.values()):
            return self._lanes.decode(state, decoding, state.total_sms, now_s, steps=_look_ahead_steps(state, decoding))
        fused = self._fused(state, prefilling, decoding, now_s)
        return (fused,) if fused is not None else self._lanes.act(state, now_s)

    def _fused(
        self, state: UnitState, prefilling: str | None, decoding: Sequence[ModelQueue], now_s: float
    ) -> Mixed | None:
        """The next prompt fused into its model's decode step, if all gaps bear it: the other models decode after it."""
        if prefilling is None or state.batch is not None or not state.idle or not state.queues[prefilling].running:
            return None
        queue = state.queues[prefilling]
        shape = queue.chunk_shape(head_sequence(queue))
        tokens = shape.new_tokens + len(queue.running)
        if tokens > state.settings.max_batch_tokens:
            return None
        mixed_s = state.predictor.mixed_s(prefilling, queue.info.spec, [shape], queue.context_tokens, state.total_sms)
        others = [q for q in decoding if q is not queue]
        cycle_s = mixed_s + decode_cycle_s(state, others, state.total_sms)
        until_s = [(mixed_s, queue), *((cycle_s, q) for q in others)]
        if any(q.wait_s(now_s) + next_s > _FUSED_SHARE_OF_TARGET * q.tightest_tbt_s for next_s, q in until_s):
            return None
        self._lanes.pass_prefill_turn(prefilling)
        self._lanes.pass_decode_turn(prefilling)
        return Mixed(prefilling, tokens, state.total_sms)


def _look_ahead_steps(state: UnitState, decoding: Sequence[ModelQueue]) -> int:
    cycle_s = decode_cycle_s(state, decoding, state.total_sms)
    if cycle_s <= 0:
        return 1
    bearable = int(_LOOK_AHEAD_SHARE_OF_TARGET * tightest_tbt_s(decoding) / cycle_s) if decoding else 1
    return max(1, min(state.settings.max_look_ahead_steps, bearable))
