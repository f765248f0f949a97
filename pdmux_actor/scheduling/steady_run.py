"""Goes on with a unit to which nothing comes, launch after launch, without a turn of the loop for each: virtual time.

Several models decode, or one does beside the slices of a prompt. From launch to launch batches have tokens more, the
prompt has layers less, and the policy chooses as always. What only an arrival or an end can change is not looked at:
tokens and who is told of them, and, while no prompt waits, the serving order and claims on KV blocks. Tokens are
brought up to date once, at the end. A launch that would end a sequence or the prompt, a gap that is too long, rows of
KV that may run out, a waiting prompt that may take them from somebody, and a transfer of quota end the run before they
happen; a prompt that starts ends it afterwards. What is decided, learned and logged is what turns of the loop would
have.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from pdmux_actor.scheduling.decision_log import DecisionLog
from pdmux_actor.scheduling.dispatcher import Dispatcher
from pdmux_actor.scheduling.launch import (
    ComputeLaunch,
    DecodeStep,
    Launch,
    LaunchCompletion,
    MixedStep,
    PrefillSlice,
    set_in_flight,
)
from pdmux_actor.scheduling.neighbour_slowdown import NeighbourSlowdown
from pdmux_actor.scheduling.plain_batch import PlainBatch, StretchTokens
from pdmux_actor.scheduling.policies.base import Action, ContinuePrefill, Decode
from pdmux_actor.scheduling.policies.dispatch_policy import DispatchPolicy
from pdmux_actor.scheduling.stretch_run import VirtualWorld
from pdmux_actor.scheduling.unit_look import LaneReadiness, UnitLook
from pdmux_actor.scheduling.unit_parts import UnitParts


class RunAhead(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Holds what a run brought, up to `now_s`: `num_launches` ended, at `num_ends` different times."""

    tokens: Sequence[StretchTokens]
    now_s: float
    num_launches: int
    num_ends: int


class SteadyRunner:
    """Runs the scheduler that these parts are of. `note` logs launches."""

    def __init__(
        self,
        parts: UnitParts,
        *,
        dispatcher: Dispatcher,
        readiness: LaneReadiness,
        neighbours: NeighbourSlowdown,
        log: DecisionLog,
        look: UnitLook,
        note: Callable[[float, Sequence[Launch]], None],
    ) -> None:
        self._settings = parts.settings
        self._keeps_accounts = parts.settings.keeps_accounts
        self._queues = parts.queues
        self._batches = parts.batches
        self._lanes = parts.lanes
        self._predictor = parts.predictor
        self._sharing = parts.sharing
        self._dispatcher = dispatcher
        self._readiness = readiness
        self._neighbours = neighbours
        self._log = log
        self._look = look
        self._note = note

    def run(self, policy: DispatchPolicy, world: VirtualWorld, until_s: float) -> RunAhead | None:
        """Goes on for as long as launches end before `until_s`. None: not one did, or they are not plain."""
        end_s = world.next_end_s()
        if end_s is None or end_s >= until_s:
            return None
        batches = self._plain_batches(world)
        if batches is None:
            return None
        waits = any(queue.waiting for queue in self._queues.values())
        tokens, told_early = list[StretchTokens](), False
        num_launches = num_ends = safe_decisions = 0
        grown, now_s = list(batches), 0.0
        while end_s is not None and end_s < until_s and not told_early:
            ended = world.ending_at(end_s)
            if not safe_decisions:
                safe_decisions = self._safe_decisions(batches)
            if not (ended and safe_decisions and self._stays_plain(batches, ended, end_s)):
                break
            if waits and self._sharing.may_preempt():
                break
            now_s = end_s
            for launch in ended:
                self._land(batches, launch, now_s)
            launches: Sequence[Launch] = ()
            if not self._look.is_full:
                actions = self._choose(policy, grown, now_s, looks=waits or not num_ends)
                if not all(isinstance(action, Decode | ContinuePrefill) for action in actions):
                    tokens, told_early = _brought_up_to_date(batches, world), True
                    self._note_in_flight(batches)
                launches = self._dispatcher.act(actions, now_s)
                grown = [launch.model for launch in launches if isinstance(launch, DecodeStep)]
            if self._keeps_accounts:
                self._note(now_s, launches)
            lengths = {model: batches[model].queue.context_tokens for model in grown}
            world.exchange(ended, launches, lengths, now_s)
            num_launches += len(ended)
            num_ends += 1
            safe_decisions -= 1
            end_s = world.next_end_s()
        if not num_ends:
            return None
        tokens += _brought_up_to_date(batches, world)
        self._note_in_flight(batches)
        return RunAhead(tokens=tokens, now_s=now_s, num_launches=num_launches, num_ends=num_ends)

    def _note_in_flight(self, batches: Mapping[str, PlainBatch]) -> None:
        for model, batch in batches.items():
            set_in_flight(batch.queue.running, self._lanes.decodes(model))

    def _plain_batches(self, world: VirtualWorld) -> Mapping[str, PlainBatch] | None:
        """Returns the running sequences of all models. None: a prompt is between two chunks, or a launch is not of
        all of them.
        """
        batches: dict[str, PlainBatch] = {}
        for model, queue in self._queues.items():
            if queue.partial or queue.outgrown or queue.removing:
                return None
            if queue.running:
                batch = PlainBatch.of(queue, world)
                if batch is None:
                    return None
                batches[model] = batch
        for flight in self._lanes.flights():
            launch = flight.launch
            if isinstance(launch, DecodeStep) and launch.sequences != tuple(self._queues[launch.model].running):
                return None
        return batches or None

    def _safe_decisions(self, batches: Mapping[str, PlainBatch]) -> int:
        """Counts decisions after which no row of KV can have run out, whatever decodes they choose."""
        fewest, all_blocks, free_blocks = 1 << 30, 0, 0
        for model, batch in batches.items():
            geometry, pool = batch.queue.info.geometry, batch.queue.pool
            rows_each = -(-self._settings.max_look_ahead_steps // geometry.tokens_per_row) + 1
            blocks = len(batch.queue.running) * rows_each * geometry.blocks_per_row
            fewest = min(fewest, (pool.quota_blocks(model) - pool.used_blocks(model)) // blocks)
            all_blocks += blocks
            free_blocks = pool.free_blocks + pool.cached_blocks
        return max(0, min(fewest, free_blocks // all_blocks))

    def _stays_plain(self, batches: Mapping[str, PlainBatch], ended: Sequence[ComputeLaunch], end_s: float) -> bool:
        if self._sharing.may_transfer(end_s):
            return False
        for launch in ended:
            match launch:
                case DecodeStep(model=model, steps=steps):
                    if not batches[model].bear(steps, end_s):
                        return False
                case PrefillSlice(model=model, last_layer=last_layer):
                    if last_layer == self._queues[model].info.spec.num_layers:
                        return False
                case MixedStep():
                    return False
        return True

    def _land(self, batches: Mapping[str, PlainBatch], launch: ComputeLaunch, end_s: float) -> None:
        if self._keeps_accounts:
            self._neighbours.advance(end_s)
        flight = self._lanes.land(launch, end_s)
        done = LaunchCompletion(launch=launch, started_s=flight.took_off_s, finished_s=end_s)
        if self._keeps_accounts:
            self._neighbours.land(flight, done)
            self._readiness.on_landing(launch.lane, end_s)
            self._log.land(done)
        self._predictor.learn(flight, done)
        if isinstance(launch, DecodeStep):
            batches[launch.model].land(launch.steps, end_s)
            return
        batch = self._batches.current
        assert isinstance(launch, PrefillSlice)
        assert batch is not None
        batch.in_flight, batch.next_layer = False, launch.last_layer

    def _choose(self, policy: DispatchPolicy, grown: Sequence[str], now_s: float, *, looks: bool) -> Sequence[Action]:
        """`grown` are models that have taken blocks since the last decision. It `looks` at all of the unit at first,
        and at every decision while prompts wait.
        """
        if looks:
            self._sharing.settle(now_s)
            state = self._look.look(now_s)
        else:
            for model in grown:
                self._sharing.settle_growth(now_s, self._queues[model])
            state = self._look.glance()
        if self._keeps_accounts:
            self._readiness.observe(state, now_s)
        return policy.choose(state, now_s)


def _brought_up_to_date(batches: Mapping[str, PlainBatch], world: VirtualWorld) -> list[StretchTokens]:
    told = [batch.bring_up_to_date(world) for batch in batches.values()]
    return [tokens for tokens in told if tokens is not None]
