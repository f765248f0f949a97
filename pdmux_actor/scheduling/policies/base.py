"""Defines what a dispatch policy sees and what it may ask for, and how policies give turns.

Structs, since some are made per decision (a frozen dataclass takes five times as long).
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pdmux_actor.scheduling.batching import PrefillBatch, next_for_prefill
from pdmux_actor.scheduling.decode_outlook import DecodeOutlook
from pdmux_actor.scheduling.launches_in_flight import LanesInFlight, LaneState
from pdmux_actor.scheduling.prediction import LatencyPredictor
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import SequenceStatus, TokenSequence
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.specs import DeviceSpec


class RoundRobin:
    """Round-robin by name: the next candidate after the one served last, in sorted order.

    >>> turn = RoundRobin()
    >>> [turn.take(["a", "b", "c"]), turn.take(["a", "b", "c"]), turn.take(["a", "c"]), turn.take(["a", "c"])]
    ['a', 'b', 'c', 'a']
    """

    def __init__(self) -> None:
        self._last: str | None = None

    def peek(self, candidates: Iterable[str]) -> str | None:
        ordered = sorted(candidates)
        if not ordered:
            return None
        following = 0 if self._last is None else bisect_right(ordered, self._last)
        return ordered[following % len(ordered)]

    def take(self, candidates: Iterable[str]) -> str | None:
        """Like `peek`, and the turn passes on."""
        name = self.peek(candidates)
        if name is not None:
            self._last = name
        return name


_BACKGROUND_SHARE_OF_TBT = 0.5  # decode that takes longer gets no more sequences that give way


class StartPrefill(msgspec.Struct, frozen=True, gc=False):
    """Form a prefill batch from the model's first waiting sequences and run its first `layers` layers.

    `token_budget` cuts the batch there, in the midst of a prompt if need be; None takes whole prompts, `max_prompts` of
    them if given. When a batch is under way, it is suspended and goes on after the new one: once, not recursively
    (MuxWise §3.4.2).
    """

    model: str
    layers: int
    sms: int
    token_budget: int | None = None
    max_prompts: int | None = None


class ContinuePrefill(msgspec.Struct, frozen=True, gc=False):
    """Run the next `layers` layers of the prefill batch."""

    layers: int
    sms: int


class Decode(msgspec.Struct, frozen=True, gc=False):
    """`steps` decode steps of all running sequences of the model. Several at once are of different models."""

    model: str
    sms: int
    steps: int = 1


class Mixed(msgspec.Struct, frozen=True, gc=False):
    """Running sequences of the model and up to `token_budget` tokens in all, prompts filling what decode leaves; cut
    into `nano_batches`, as MixedStep has it.
    """

    model: str
    token_budget: int
    sms: int
    nano_batches: int = 1


Action = StartPrefill | ContinuePrefill | Decode | Mixed


class UnitState(msgspec.Struct, kw_only=True, gc=False):
    """A policy reads this; it changes nothing in it, nor does anybody while it chooses: what several rules ask for is
    looked up once. `suspended` is the batch that `batch` has preempted. `decode_lane` is all decode lanes together:
    busy while one is, with the SMs that they reach to.
    """

    device: DeviceSpec
    settings: SchedulerSettings
    predictor: LatencyPredictor
    queues: Mapping[str, ModelQueue]
    batch: PrefillBatch | None
    suspended: PrefillBatch | None
    prefill_lane: LaneState
    decode_lane: LaneState
    lanes: LanesInFlight | None = None  # None: there is one decode lane
    share_in_time: float = 1.0  # of the last first tokens
    _decoding: Sequence[ModelQueue] | None = None
    _idle_decoding: Sequence[ModelQueue] | None = None
    _outlooks: Sequence[DecodeOutlook] | None = None
    _prefillable: dict[str, bool] = msgspec.field(default_factory=dict)
    gains_of_lanes: dict[tuple[str, ...], float] = msgspec.field(default_factory=dict)  # decode_lanes.py, by models

    @property
    def idle(self) -> bool:
        return not self.prefill_lane.busy and not self.decode_lane.busy

    @property
    def total_sms(self) -> int:
        return self.device.num_sms

    def decoding(self) -> Sequence[ModelQueue]:
        """Models that have sequences to decode."""
        if self._decoding is None:
            self._decoding = [queue for queue in self.queues.values() if queue.running]
        return self._decoding

    def decode_outlooks(self, queues: Sequence[ModelQueue]) -> Sequence[DecodeOutlook]:
        """Predicts the next decode step of each of these models: for the same ones that `decoding` returns, once."""
        if queues is not self._decoding:
            return self.predictor.decode_outlooks(queues)
        if self._outlooks is None:
            self._outlooks = self.predictor.decode_outlooks(queues)
        return self._outlooks

    def idle_decoding(self) -> Sequence[ModelQueue]:
        """The same without those that have a decode step in flight."""
        if self._idle_decoding is None:
            lanes = self.lanes
            if lanes is None:
                self._idle_decoding = () if self.decode_lane.busy else self.decoding()
            else:
                self._idle_decoding = [queue for queue in self.decoding() if not lanes.decodes(queue.model)]
        return self._idle_decoding

    @property
    def num_decodes(self) -> int:
        """Decode launches in flight."""
        return int(self.decode_lane.busy) if self.lanes is None else self.lanes.num_decodes

    def decode_gaps(self) -> Sequence[tuple[int, int]]:
        """SMs that further decodes could have, `[start, end)`, ascending; the next one has the first gap that is wide
        enough.
        """
        if self.lanes is not None:
            return self.lanes.decode_gaps()
        end = self.total_sms - self.prefill_lane.sms
        return [] if self.decode_lane.busy or end == 0 else [(0, end)]

    @property
    def num_prompts(self) -> int:
        """Prompts that wait, those that have been begun among them."""
        return sum([len(queue.waiting) + len(queue.partial) for queue in self.queues.values()])

    def forget_heads(self) -> None:
        """Prompts that wait have been put into another order."""
        self._prefillable.clear()

    def prefillable_models(self) -> list[str]:
        return [queue.model for queue in self.queues.values() if self.prefillable(queue)]

    def prefillable(self, queue: ModelQueue) -> bool:
        """Returns whether a prefill batch of the model could be formed now."""
        prefillable = self._prefillable.get(queue.model)
        if prefillable is None:
            head = next_for_prefill(queue, self.settings)
            prefillable = head is not None and not (head.gives_way and self._keeps_waiting(head))
            self._prefillable[queue.model] = prefillable
        return prefillable

    def _keeps_waiting(self, head: TokenSequence) -> bool:
        """A prompt that gives way starts when no other waits, while decode is fast enough for those that may come."""
        if head.status is not SequenceStatus.WAITING:
            return False
        if any(queue.waiting and not queue.waiting[0].gives_way for queue in self.queues.values()):
            return True
        cycle_s = self.predictor.decode_steps_s(self.decoding(), self.total_sms)
        target_s = min([head.tbt_s, *[queue.tightest_tbt_s for queue in self.decoding()]])
        return cycle_s > _BACKGROUND_SHARE_OF_TBT * target_s


class StretchView(msgspec.Struct, gc=False):
    """Holds what a policy sees of a stretch of decode with nothing else to do (unit_look.py). `last` is what it
    chose before, `waited_s` how long sequences of `queue`, all of them, have waited for their next token.
    """

    device: DeviceSpec
    settings: SchedulerSettings
    predictor: LatencyPredictor
    queue: ModelQueue
    last: Decode | Mixed
    waited_s: float
