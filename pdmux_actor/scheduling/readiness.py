"""Since when a lane idles although it could work."""

from pdmux_actor.scheduling.launch import Lane
from pdmux_actor.scheduling.policies.base import UnitState


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
