"""Looks at a unit before it decides: at all of it, and since when a lane idles although it could work; or, in a stretch
of decode with nothing else to do, only at how that goes on.

From one decode of a model's whole batch to the next nothing has changed but that its sequences have a token more, as
long as no event came, none of them ended, and nothing waits, is being prefilled or is held back. Queues, lanes and
prompts need not be looked at then: the policy is only asked how the decode goes on. What it answers, and so every
decision, is what it would have chosen after a look at everything.
"""

from collections.abc import Sequence

import msgspec

from pdmux_actor.scheduling.launch import DecodeStep, Lane, Launch, MixedStep, Repartition
from pdmux_actor.scheduling.policies.base import Action, Decode, Mixed, StretchView, UnitState
from pdmux_actor.scheduling.policies.dispatch_policy import DispatchPolicy, RoomPolicy
from pdmux_actor.scheduling.prediction import LatencyPredictor
from pdmux_actor.scheduling.prompt_order import PromptOrder
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.settings import SchedulerSettings
from pdmux_actor.scheduling.unit_parts import UnitParts
from profiler.specs import DeviceSpec


class UnitLook:
    """`take_policy` comes first: what is seen is for that one."""

    def __init__(self, parts: UnitParts) -> None:
        self._device = parts.device
        self._settings = parts.settings
        self._predictor = parts.predictor
        self._queues = parts.queues
        self._batches = parts.batches
        self._lanes = parts.lanes
        self._prompt_order = PromptOrder()
        self._target_aware = False
        self._room_policy: RoomPolicy | None = None

    def take_policy(self, policy: DispatchPolicy) -> None:
        self._target_aware = policy.target_aware
        self._room_policy = policy if isinstance(policy, RoomPolicy) else None

    def look(self, now_s: float) -> UnitState:
        """Returns what it sees now. Where a prompt may start, those that wait are put into serving order."""
        state = self.glance()
        rooms = {} if self._room_policy is None else self._room_policy.rooms(state)
        for queue in self._queues.values():
            queue.room = rooms.get(queue.model)
        if self._target_aware:
            prefill_sms = self._lanes.partition.prefill_sms or self._device.num_sms
            if self._prompt_order.arrange(state, now_s, prefill_sms=prefill_sms):
                state.forget_heads()
        return state

    def glance(self) -> UnitState:
        """Returns the same while nothing waits, and nothing did at the last look."""
        return UnitState(
            device=self._device,
            settings=self._settings,
            predictor=self._predictor,
            queues=self._queues,
            batch=self._batches.current,
            suspended=self._batches.suspended,
            prefill_lane=self._lanes.lane_state(Lane.PREFILL),
            decode_lane=self._lanes.lane_state(Lane.DECODE),
            lanes=self._lanes,
            share_in_time=self._prompt_order.share_in_time,
        )

    @property
    def is_full(self) -> bool:
        """Nothing more can be launched before something lands."""
        lanes = self._lanes
        if not lanes.both_busy:
            return False
        if lanes.num_decodes >= self._settings.decode_lanes or not any(lanes.decode_gaps()):
            return True
        return not any(queue.running and not lanes.decodes(queue.model) for queue in self._queues.values())


class LaneReadiness:
    """A lane is ready while it is idle, a model has work for it, and the other lane's launch leaves it SMs.

    Work for prefill is a batch under way or a prompt that KV admits, work for decode a running sequence. Observed at
    every decision: exact to within a turn of the loop.
    """

    def __init__(self) -> None:
        self._ready_s: dict[Lane, float] = {}
        self._landed_s: dict[Lane, float] = {}  # landings since the last decision

    def on_landing(self, lane: Lane, finished_s: float) -> None:
        self._landed_s[lane] = finished_s

    def observe(self, state: UnitState, now_s: float) -> None:
        """Takes in the queues before the policy chooses. What a landing made ready is ready since that landing."""
        self._note(Lane.PREFILL, _can_prefill(state), now_s)
        self._note(Lane.DECODE, _can_decode(state), now_s)
        self._landed_s.clear()

    def clear(self) -> None:
        """There is no work at all."""
        self._ready_s.clear()
        self._landed_s.clear()

    def take_landed(self, lane: Lane) -> float | None:
        """Does what `observe` and `take` do where a launch of `lane` has landed, another follows, and there is nothing
        else to do.
        """
        landed_s = self._landed_s.pop(lane, None)
        self.clear()
        return landed_s

    def take(self, lane: Lane, *, sms_left: int) -> float | None:
        """The lane is given a launch, which leaves the other lane `sms_left`; since when it was ready for one."""
        ready_s = self._ready_s.pop(lane, None)
        if sms_left == 0:
            self._ready_s.clear()
        return ready_s

    def _note(self, lane: Lane, ready: bool, now_s: float) -> None:
        if not ready:
            self._ready_s.pop(lane, None)
        elif lane not in self._ready_s:
            landed_s = self._landed_s.get(lane)
            self._ready_s[lane] = max(self._landed_s.values(), default=now_s) if landed_s is None else landed_s


def _can_prefill(state: UnitState) -> bool:
    if state.prefill_lane.busy or state.decode_lane.sms == state.device.num_sms:
        return False
    if state.batch is not None:
        return True
    asking = [queue for queue in state.queues.values() if queue.waiting or queue.partial]
    return bool(asking) and any(state.prefillable(queue) for queue in asking)


def _can_decode(state: UnitState) -> bool:
    if state.decode_lane.busy or state.prefill_lane.sms == state.device.num_sms:
        return False
    return bool(state.decoding())


class DecodeStretch(msgspec.Struct, gc=False):
    """`action` is the last one, which nothing but time and tokens separates from the next; it has been carried out for
    all `num_running` sequences of `queue`. `landed_s` is when its launch ended, None while it is in flight.
    """

    queue: ModelQueue
    action: Decode | Mixed
    num_running: int
    landed_s: float | None = None

    def view(
        self, device: DeviceSpec, settings: SchedulerSettings, predictor: LatencyPredictor, now_s: float
    ) -> StretchView:
        assert self.landed_s is not None
        return StretchView(device, settings, predictor, self.queue, self.action, now_s - self.landed_s)

    def take_off(self, action: Decode | Mixed, launches: Sequence[Launch]) -> bool:
        """Notes what was launched next. False: the stretch is over, since KV blocks have run out."""
        self.action, self.landed_s = action, None
        return _decodes_all(self.queue, launches) and not self.queue.waiting and not self.queue.outgrown

    def land(self, finished_s: float) -> bool:
        """Notes that its launch has ended and was applied. False: the stretch is over, since a sequence ended."""
        self.landed_s = finished_s
        return len(self.queue.running) == self.num_running


def stretch_from(
    state: UnitState, actions: Sequence[Action], launches: Sequence[Launch], *, holds_tokens: bool
) -> DecodeStretch | None:
    """Returns the stretch that these launches begin, chosen in `state`, if they are all that there was to do.
    `holds_tokens`: first tokens are held back.
    """
    if len(actions) != 1 or holds_tokens or not state.idle or state.batch is not None or state.suspended is not None:
        return None
    action = actions[0]
    if not isinstance(action, Decode | Mixed):
        return None
    queue = state.queues[action.model]
    if any(
        q.waiting or q.partial or q.outgrown or q.removing or (q.running and q is not queue)
        for q in state.queues.values()
    ):
        return None
    return DecodeStretch(queue, action, len(queue.running)) if _decodes_all(queue, launches) else None


def _decodes_all(queue: ModelQueue, launches: Sequence[Launch]) -> bool:
    """Says whether there is one launch, behind another partition at most, and it decodes all running sequences."""
    last = launches[-1] if launches else None
    return (
        isinstance(last, DecodeStep | MixedStep)
        and all(isinstance(before, Repartition) for before in launches[:-1])
        and len(last.sequences) == len(queue.running)
    )
