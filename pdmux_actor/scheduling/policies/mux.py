"""The default policy: aggregated, side by side or looking ahead, whichever the targets allow.

Models take turns for the prefill lane and decodes of all models fill the decode lane (MuxServe's ADBS). A prompt is
fused into the decode step where that meets the TBT target and yields most tokens (fusing.py, after DuetServe §4.2).
Otherwise both lanes run side by side with slices and preemption (MuxWise §3.4). When no prompt waits, decode looks a
few steps ahead (DuetServe §4.3), on the least share that does not slow it down: the next prompt can start at once.
Prompts go by the time their first token is due, and share a batch only where that saves time (batch_size.py).
"""

from collections.abc import Sequence

from pdmux_actor.scheduling.partition import ample_decode_share
from pdmux_actor.scheduling.policies.base import Action, Mixed, UnitState
from pdmux_actor.scheduling.policies.forecast import decode_cycle_s, tightest_tbt_s
from pdmux_actor.scheduling.policies.fusing import fused_tokens
from pdmux_actor.scheduling.policies.side_by_side import SideBySide
from pdmux_actor.scheduling.queues import ModelQueue

# Look-ahead hands over its tokens together, so the gap before them is that of all its steps.
_LOOK_AHEAD_SHARE_OF_TARGET = 0.5
_SLOWER_AT_MOST = 0.05  # decode alone, for leaving SMs to a prompt that may come
_TRY_SHARE_OF_TARGET = 0.7  # a step on a share that has not been tried may take longer than modelled


class Mux:
    name = "mux"
    earliest_deadline_first = True

    def __init__(self) -> None:
        self._lanes = SideBySide(paced=True)

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        prefilling = self._lanes.next_prefill(state)
        if prefilling is None:
            return self._decode_alone(state, now_s)
        fused = self._fused(state, prefilling, now_s)
        return (fused,) if fused is not None else self._lanes.act(state, prefilling, now_s)

    def _decode_alone(self, state: UnitState, now_s: float) -> Sequence[Action]:
        decoding = state.decoding()
        if not decoding or not state.idle:
            return ()
        sms = ample_decode_share(
            state.device,
            lambda sms: decode_cycle_s(state, decoding, sms),
            tolerance=_SLOWER_AT_MOST,
            is_known=lambda sms: all(state.predictor.knows_decode(q.model, sms, len(q.running)) for q in decoding),
            bearable_s=_TRY_SHARE_OF_TARGET * tightest_tbt_s(decoding),
        )
        waiting = any(q.waiting for q in state.queues.values())
        return self._lanes.decode(
            state, decoding, sms, now_s, steps=1 if waiting else _look_ahead_steps(state, decoding, sms)
        )

    def _fused(self, state: UnitState, prefilling: str, now_s: float) -> Mixed | None:
        if state.batch is not None or not state.idle:
            return None
        tokens = fused_tokens(state, prefilling, now_s)
        if tokens is None:
            return None
        self._lanes.pass_prefill_turn(prefilling)
        self._lanes.pass_decode_turn(prefilling)
        return Mixed(prefilling, tokens, state.total_sms)


def _look_ahead_steps(state: UnitState, decoding: Sequence[ModelQueue], sms: int) -> int:
    cycle_s = decode_cycle_s(state, decoding, sms)
    if cycle_s <= 0:
        return 1
    bearable = int(_LOOK_AHEAD_SHARE_OF_TARGET * tightest_tbt_s(decoding) / cycle_s)
    return max(1, min(state.settings.max_look_ahead_steps, bearable))
