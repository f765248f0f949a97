"""Looks at a unit before it decides: what the policy sees, and since when a lane idles although it could work."""

from pdmux_actor.scheduling.launch import Lane
from pdmux_actor.scheduling.policies.base import UnitState
from pdmux_actor.scheduling.policies.dispatch_policy import DispatchPolicy, RoomPolicy
from pdmux_actor.scheduling.prompt_order import PromptOrder
from pdmux_actor.scheduling.unit_parts import UnitParts


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
