"""Goes on with a stretch of decode, step after step, without a turn of the loop for each: in virtual time.

A turn hands tokens over, looks for events and fills lanes. In a stretch (unit_look.py) there is one lane, and no
event for as long as the world says; then a step is a few sums: how long it takes, what that teaches, how the policy
goes on.
Tokens and counts are brought up to date once, at the end. Whatever would not be as plain as that ends the run
before it happens: a sequence that may end or have a gap that is too long, rows of KV that run out, a transfer of quota.
What is decided, learned and logged is what turns of the loop would have.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from pdmux_actor.scheduling.batching import grow_together
from pdmux_actor.scheduling.decision_log import DecisionLog
from pdmux_actor.scheduling.launch import ComputeLaunch, DecodeStep, Launch, LaunchCompletion, MixedStep
from pdmux_actor.scheduling.launches_in_flight import LaunchInFlight
from pdmux_actor.scheduling.plain_batch import PlainBatch, StretchTokens, TokenSource
from pdmux_actor.scheduling.policies.base import Decode, Mixed
from pdmux_actor.scheduling.policies.dispatch_policy import StretchPolicy
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.unit_look import DecodeStretch
from pdmux_actor.scheduling.unit_parts import UnitParts


class VirtualWorld(TokenSource, Protocol):
    """Defines an executor whose launches end when it says beforehand."""

    def next_end_s(self) -> float | None: ...

    def ending_at(self, end_s: float) -> Sequence[ComputeLaunch]:
        """Returns the launches that are over then, and not only nearly, in the order of their lanes."""
        ...

    def follow(self, launch: DecodeStep | MixedStep, contexts: Sequence[int], now_s: float) -> float:
        """The only launch has ended at `now_s`, and this one, of sequences of these lengths, follows. Returns when it
        ends.
        """
        ...

    def exchange(
        self,
        ended: Sequence[ComputeLaunch],
        launches: Sequence[Launch],
        contexts: Mapping[str, Sequence[int]],
        now_s: float,
    ) -> None:
        """Some of the launches have ended at `now_s`, and these start. `contexts` are the lengths of all running
        sequences, by model.
        """
        ...


class StretchRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Holds how a run ended: `pending` was chosen then and is still to be carried out; None: the next step is in
    flight.
    """

    tokens: StretchTokens
    pending: Decode | Mixed | None

    @property
    def now_s(self) -> float:
        return self.tokens.times_s[-1]


class StretchRunner:
    """Runs stretches of the scheduler that these parts are of."""

    def __init__(self, parts: UnitParts, log: DecisionLog) -> None:
        self._device = parts.device
        self._settings = parts.settings
        self._predictor = parts.predictor
        self._lanes = parts.lanes
        self._sharing = parts.sharing
        self._log = log

    def run(
        self, stretch: DecodeStretch, policy: StretchPolicy, world: VirtualWorld, until_s: float
    ) -> StretchRun | None:
        """Goes on with a stretch whose launch is in flight for as long as steps end before `until_s`. None: not one
        did, or they are not plain.
        """
        end_s = world.next_end_s()
        if end_s is None or end_s >= until_s:
            return None
        queue, (flight,) = stretch.queue, self._lanes.flights()
        launch = flight.launch
        assert isinstance(launch, DecodeStep | MixedStep)
        batch = PlainBatch.of(queue, world)
        if batch is None or (isinstance(launch, DecodeStep) and launch.part is not None):
            return None
        rows, used_blocks = _RowsLeft(queue), _used_blocks(queue)
        pending: Decode | Mixed | None = None
        while (
            end_s < until_s
            and batch.bear(_steps(launch), end_s)
            and not self._sharing.may_transfer(end_s)
            and world.ending_at(end_s)
        ):
            rows.tokens -= _steps(launch)
            action = self._land(stretch, batch, policy, flight, launch, end_s)
            following = _following(launch, action, queue) if action.sms == flight.sms else None
            if following is None:
                pending = action
                break
            if rows.tokens < _steps(following) - 1:
                if not grow_together(queue, _steps(following)):
                    pending = action
                    break
                rows, used_blocks = _RowsLeft(queue), _used_blocks(queue)
            launch = following
            stretch.action, stretch.landed_s = action, None
            self._take_off(queue, flight, launch, used_blocks, end_s)
            end_s = world.follow(launch, queue.context_tokens, end_s)
        tokens = batch.bring_up_to_date(world)
        if tokens is None:
            return None
        if pending is None and self._settings.decode_lanes > 1:
            flight.draws = self._predictor.demand(self._device, queue.info.spec, flight)
        return StretchRun(tokens=tokens, pending=pending)

    def _land(
        self,
        stretch: DecodeStretch,
        batch: PlainBatch,
        policy: StretchPolicy,
        flight: LaunchInFlight,
        launch: DecodeStep | MixedStep,
        end_s: float,
    ) -> Decode | Mixed:
        """Returns how the policy goes on."""
        done = LaunchCompletion(launch=launch, started_s=flight.took_off_s, finished_s=end_s)
        self._predictor.learn(flight, done)
        if self._settings.keeps_accounts:
            self._log.land(done)
        batch.land(_steps(launch), end_s)
        self._sharing.settle_growth(end_s, stretch.queue)
        stretch.landed_s = end_s
        return policy.go_on(stretch.view(self._device, self._settings, self._predictor, end_s))

    def _take_off(
        self,
        queue: ModelQueue,
        flight: LaunchInFlight,
        launch: DecodeStep | MixedStep,
        used_blocks: int,
        now_s: float,
    ) -> None:
        flight.launch, flight.took_off_s, flight.contexts = launch, now_s, queue.context_tokens
        flight.modelled_s = self._predictor.modelled_s(queue.info.spec, launch, flight.sms, queue.context_tokens)
        flight.expected_s = self._predictor.expected_s(flight, beside_other_lane=False)
        if not self._settings.keeps_accounts:
            return
        self._log.take_off(
            now_s,
            launch,
            predicted_s=flight.expected_s,
            ready_s=now_s,
            used_blocks=used_blocks,
            decoding_ids=queue.running_ids,
        )


class _RowsLeft:
    """Counts `tokens` until the first running sequence has filled its rows of KV."""

    def __init__(self, queue: ModelQueue) -> None:
        per_row = queue.info.geometry.tokens_per_row
        self.tokens = min([len(s.rows) * per_row - n for s, n in zip(queue.running, queue.context_tokens, strict=True)])


def _used_blocks(queue: ModelQueue) -> int:
    """Returns those of all models of the unit."""
    pool = queue.pool
    return pool.total_blocks - pool.free_blocks - pool.cached_blocks


def _steps(launch: DecodeStep | MixedStep) -> int:
    return launch.steps if isinstance(launch, DecodeStep) else 1


def _following(
    launch: DecodeStep | MixedStep, action: Decode | Mixed, queue: ModelQueue
) -> DecodeStep | MixedStep | None:
    """Returns the launch that the action makes; None: it is of another kind."""
    if isinstance(launch, MixedStep):
        is_like = isinstance(action, Mixed) and action.nano_batches == launch.nano_batches and not launch.chunks
        return launch if is_like else None
    if not isinstance(action, Decode):
        return None
    steps = 1 if action.steps == 1 else min(action.steps, queue.look_ahead_room())
    if steps == launch.steps:
        return launch
    return DecodeStep(model=launch.model, sequences=launch.sequences, steps=steps)
