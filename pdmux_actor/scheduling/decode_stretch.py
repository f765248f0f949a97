"""Stretches of decode with nothing else to do: what the next decision may leave out.

From one decode of a model's whole batch to the next nothing has changed but that its sequences have a token more, as
long as no event came, none of them ended, and nothing waits, is being prefilled or is held back. Queues, lanes
and prompts need not be looked at then: the policy is only asked how the
decode goes on. What it answers, and so every decision, is what it would have chosen after a look at everything.
"""

from collections.abc import Sequence

import msgspec

from pdmux_actor.scheduling.launch import DecodeStep, Launch, MixedStep, Repartition
from pdmux_actor.scheduling.policies.base import Action, Decode, Mixed, StretchView, UnitState
from pdmux_actor.scheduling.prediction import LatencyPredictor
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.specs import DeviceSpec


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
