"""The default policy: of all ways to take the next prompt the one that serves most requests within both their targets.

Prompts that can be in time go by due time, the others behind them (prompt_order.py). Each is fused into a decode step,
or prefilled beside decode on the share of SMs that prefill_options.py chooses, with slices and preemption (MuxWise,
section 3.4). When no prompt waits, decode looks a few steps ahead (DuetServe, section 4.3), on half of the SMs or less
if that does not slow it down: the next prompt can start at once. Decodes of several models take turns, or run at once
on parts of the decode share where that is faster (decode_lanes.py, after MuxServe's ADBS). Prompts share a batch only
where that saves time (side_by_side.py).
"""

from collections.abc import Callable, Mapping, Sequence, Set

import msgspec

from pdmux_actor.scheduling.launch import ample_decode_share, decode_shares
from pdmux_actor.scheduling.policies.base import Action, Decode, Mixed, StretchView, UnitState
from pdmux_actor.scheduling.policies.decode_lanes import DecodeBatches, is_near, may_add_decode
from pdmux_actor.scheduling.policies.decode_room import DecodeRoom
from pdmux_actor.scheduling.policies.entry import PolicyEntry
from pdmux_actor.scheduling.policies.forecast import (
    DecodeCycle,
    SecondsAndGain,
    decode_cycle_s,
    prefill_shapes,
    tightest_from,
)
from pdmux_actor.scheduling.policies.prefill_options import PrefillOption, PrefillOptions, WayOfBatch
from pdmux_actor.scheduling.policies.request_delays import DecodeLoad, LaneLoad
from pdmux_actor.scheduling.policies.side_by_side import SideBySide
from pdmux_actor.scheduling.prediction import LatencyPredictor
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.specs import DeviceSpec

# Look-ahead hands over its tokens together, so the gap before them is that of all its steps.
_LOOK_AHEAD_SHARE_OF_TARGET = 0.5
_LATE_SHARE = 0.9  # of what is left of a target, lest a prediction that is a little short costs it
_SLOWER_AT_MOST = 0.05  # decode alone, for leaving SMs to a prompt that may come
_LEAST_IN_TIME = 0.1
_FULL = 0.95
_TRY_SHARE_OF_TARGET = 0.7  # a step on a share that has not been tried may take longer than modelled


class ShareAlone(msgspec.Struct, kw_only=True, gc=False):
    """`sms` for decode with nothing to prefill. A cycle was predicted to take `cycle_s` on them, which is `gain` times
    the sum of the models' steps; `known` are the shares that had been measured, by model.
    """

    batches: DecodeBatches
    known: Sequence[Set[int]]
    sms: int
    gain: float
    cycle_s: float
    tightest_s: float

    def cycle_now_s(self, predictor: LatencyPredictor, decoding: Sequence[ModelQueue]) -> float | None:
        """Returns what a cycle takes by now. None: the share is to be chosen anew."""
        if not self.batches.are_of(decoding):
            return None
        for place, queue in enumerate(decoding):
            if self.known[place] is not predictor.known_decode_shares(queue.model, len(queue.running)):
                return None
        cycle_s = self.gain * predictor.decode_steps_s(decoding, self.sms)
        return cycle_s if is_near(cycle_s, self.cycle_s) else None


class Mux:
    target_aware = True
    sees_batches_only = True

    def __init__(self) -> None:
        self._lanes = SideBySide(paced=True)
        self._decode_load = DecodeLoad()
        self._alone: ShareAlone | None = None  # chosen last, as is the way beside a prefill
        self._way: WayOfBatch | None = None
        self._room = DecodeRoom()
        self._bounds: Mapping[str, int] = {}

    def rooms(self, state: UnitState) -> Mapping[str, int]:
        waits = any(queue.waiting for queue in state.decoding())
        self._bounds = self._room.bounds(state, self._bounds) if waits else {}
        return self._bounds

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        prefilling = self._lanes.next_prefill(state)
        if prefilling is None:
            self._lanes.note_no_prefill(now_s)
            return self._decode_alone(state, now_s)
        decoding = state.decoding()
        if not decoding:
            return self._lanes.act(state, prefilling, now_s)
        way = self._way_beside(state, prefilling, decoding, now_s)
        if way is None:
            return self._lanes.alternate(state, prefilling, decoding, now_s)
        self._decode_load.note_step(way.gap_s)
        self._room.note_gap(way.least_gap_s, decode_cycle_s(state, decoding, state.total_sms))
        if way.fused_tokens is not None:
            if not decode_shares(state.device) and not self._lanes.has_decode_turn(prefilling, decoding):
                return self._lanes.decode(state, decoding, state.total_sms, now_s)  # no other way leaves them a step
            return self._fuse(state, prefilling, way.fused_tokens, now_s)
        return self._lanes.both(state, prefilling, decoding, way.decode_sms, now_s)

    def _way_beside(
        self, state: UnitState, prefilling: str, decoding: Sequence[ModelQueue], now_s: float
    ) -> PrefillOption | None:
        if self._way is not None and self._way.holds(state, decoding):
            return self._way.way
        may_fuse = state.batch is None and state.idle
        way = PrefillOptions(state, prefilling, decoding, self._load(state), now_s).best(may_fuse=may_fuse)
        self._way = None if way is None else WayOfBatch.of(way, state, decoding)
        return way

    def _load(self, state: UnitState) -> LaneLoad:
        """What was borne, and more where first tokens come too late: of the places, if they are what is short."""
        taken, prefill = self._decode_load.taken(state), self._lanes.load
        missed = 1 / max(_LEAST_IN_TIME, state.share_in_time)
        if taken >= _FULL:
            return LaneLoad(prefill, self._decode_load.per_s(taken * missed))
        return LaneLoad(prefill * missed, self._decode_load.per_s(taken))

    def _decode_alone(self, state: UnitState, now_s: float) -> Sequence[Action]:
        decoding = state.decoding()
        if not decoding or state.prefill_lane.busy or not may_add_decode(state):
            return ()
        alone, cycle_s = self._share_alone(
            state.device, state.predictor, decoding, lambda: DecodeCycle(state, decoding).seconds_and_gain
        )
        steps = 1
        if not any(q.waiting for q in state.queues.values()) and _may_look_ahead(alone, cycle_s):
            # A sequence that joined while a step ran has waited already.
            waited_s = max([q.wait_s(now_s) for q in decoding])
            steps = _look_ahead_steps(state.settings, alone, cycle_s, waited_s)
        return self._lanes.decode(state, decoding, alone.sms, now_s, steps=steps)

    def go_on(self, view: StretchView) -> Decode | Mixed:
        queue, predictor = view.queue, view.predictor

        def cycle() -> SecondsAndGain:
            return predictor.decode_outlook(queue.model, queue.info.spec, queue.context_tokens).solo_s, _no_gain

        alone, cycle_s = self._share_alone(view.device, predictor, (queue,), cycle)
        steps = 1
        if _may_look_ahead(alone, cycle_s):
            steps = _look_ahead_steps(view.settings, alone, cycle_s, view.waited_s)
        return Decode(queue.model, alone.sms, steps)

    def _share_alone(
        self,
        device: DeviceSpec,
        predictor: LatencyPredictor,
        decoding: Sequence[ModelQueue],
        cycle: Callable[[], SecondsAndGain],
    ) -> tuple[ShareAlone, float]:
        """SMs for decode with nothing to prefill, and what a cycle takes on them."""
        alone = self._alone
        cycle_s = None if alone is None else alone.cycle_now_s(predictor, decoding)
        if alone is None or cycle_s is None:
            alone = self._alone = _choose_share(device, predictor, decoding, *cycle())
            cycle_s = alone.cycle_s
        self._decode_load.note_step(cycle_s)
        return alone, cycle_s

    def _fuse(self, state: UnitState, prefilling: str, tokens: int, now_s: float) -> Sequence[Action]:
        shapes = prefill_shapes(state, prefilling)
        self._lanes.begin_prefill(state, prefilling, shapes, state.total_sms, now_s)
        self._lanes.pass_decode_turn(prefilling)
        return (Mixed(prefilling, tokens, state.total_sms),)


POLICY = PolicyEntry(
    name="mux",
    rule="prompts that can be in time by due time, the others behind them; each taken in the way (fused, or beside "
    "decode on some share) in which most requests are served within both targets; first tokens held until the "
    "second can follow in time; look a few decode steps ahead when nothing waits (details below)",
    source="all three papers",
    make=Mux,
)


def _choose_share(
    device: DeviceSpec,
    predictor: LatencyPredictor,
    decoding: Sequence[ModelQueue],
    seconds: Callable[[int], float],
    gain_on: Callable[[int], float],
) -> ShareAlone:
    total_sms = device.num_sms
    known_of_each = [predictor.known_decode_shares(q.model, len(q.running)) for q in decoding]
    known: Set[int] = {*known_of_each[0]}.intersection(*known_of_each[1:])  # where steps of every model were measured
    # More SMs are never slower: what a stall taught of a share that is not used since must not decide.
    fastest_s = min([seconds(share) for share in {total_sms, *known}])
    tightest_s = tightest_from(decoding, fastest_s)
    sms = ample_decode_share(
        device, seconds, tolerance=_SLOWER_AT_MOST, known=known, bearable_s=_TRY_SHARE_OF_TARGET * tightest_s
    )
    cycle_s = seconds(sms)
    if sms < total_sms and cycle_s > tightest_s:
        sms, cycle_s = total_sms, fastest_s
    return ShareAlone(
        batches=DecodeBatches.of(decoding),
        known=known_of_each,
        sms=sms,
        gain=gain_on(sms),
        cycle_s=cycle_s,
        tightest_s=tightest_s,
    )


def _no_gain(sms: int) -> float:
    return 1.0


def _may_look_ahead(alone: ShareAlone, cycle_s: float) -> bool:
    return _LOOK_AHEAD_SHARE_OF_TARGET * alone.tightest_s >= 2 * cycle_s


def _look_ahead_steps(settings: SchedulerSettings, alone: ShareAlone, cycle_s: float, waited_s: float) -> int:
    """`waited_s`: how long the sequence that waits longest has waited for its next token."""
    if cycle_s <= 0:
        return 1
    tightest_s = alone.tightest_s
    bearable_s = min(_LOOK_AHEAD_SHARE_OF_TARGET * tightest_s, _LATE_SHARE * (tightest_s - waited_s))
    return int(max(1, min(settings.max_look_ahead_steps, bearable_s / cycle_s)))
