"""The sans-I/O scheduler of a unit: events and completions in, launches and token events out.

It never sleeps, reads a clock, awaits, or touches a tensor. A policy chooses, the dispatcher makes launches of that
and what they bring is applied to sequences. All of these work on the same queues, batches and lanes, and call downwards
only.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pdmux_actor.kv.block_pool import BlockPool
from pdmux_actor.messages import FinishReason, LoadReport, TokenEvent
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.adapters import Adapters
from pdmux_actor.scheduling.answers import Answers, FirstTokens
from pdmux_actor.scheduling.batching import PrefillBatches
from pdmux_actor.scheduling.block_sharing import BlockSharing
from pdmux_actor.scheduling.decision_log import DecisionLog
from pdmux_actor.scheduling.dispatcher import Dispatcher
from pdmux_actor.scheduling.early_steps import EarlySteps
from pdmux_actor.scheduling.events import (
    Abort,
    Arrival,
    AttachAdapter,
    AttachModel,
    Event,
    KeepPrefix,
    ReadDecisions,
    ReadPrefix,
    RemoveModel,
    ResizePool,
    SetPolicy,
    SetQuotas,
    Stop,
)
from pdmux_actor.scheduling.launch import (
    DecodeStep,
    DropPrefill,
    Lane,
    Launch,
    LaunchCompletion,
    Repartition,
    set_in_flight,
)
from pdmux_actor.scheduling.launches_in_flight import LanesInFlight
from pdmux_actor.scheduling.load_reporter import LoadReporter
from pdmux_actor.scheduling.neighbour_slowdown import NeighbourSlowdown
from pdmux_actor.scheduling.policies.base import Decode, Mixed
from pdmux_actor.scheduling.policies.dispatch_policy import BatchPolicy, DispatchPolicy, StretchPolicy
from pdmux_actor.scheduling.policies.registry import make_policy
from pdmux_actor.scheduling.prediction import LatencyPredictor
from pdmux_actor.scheduling.prefix_exchange import PrefixExchange
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.results import LaunchResults
from pdmux_actor.scheduling.sequence import TokenSequence
from pdmux_actor.scheduling.settings import SchedulerSettings
from pdmux_actor.scheduling.steady_run import RunAhead, SteadyRunner
from pdmux_actor.scheduling.stretch_run import StretchRunner, VirtualWorld
from pdmux_actor.scheduling.unit_look import DecodeStretch, LaneReadiness, UnitLook, stretch_from
from pdmux_actor.scheduling.unit_parts import UnitParts
from profiler.contention import ContentionGuard
from profiler.latency import LatencyModel
from profiler.specs import DeviceSpec


class Scheduler:
    def __init__(
        self,
        *,
        policy: DispatchPolicy,
        settings: SchedulerSettings,
        pool: BlockPool,
        device: DeviceSpec,
        latency: LatencyModel,
        guard: ContentionGuard | None = None,
    ) -> None:
        self.log = DecisionLog(settings.decision_log_entries, device.num_sms)
        self._device = device
        self._keeps_accounts = settings.keeps_accounts
        self._settings = settings
        self._pool = pool
        self._queues: dict[str, ModelQueue] = {}
        self._batches = PrefillBatches()
        self._lanes = LanesInFlight(device.num_sms)
        self._predictor = LatencyPredictor(latency, guard, counts_steps=settings.keeps_accounts)
        self._sharing = BlockSharing(pool, self._queues, settings)
        parts = UnitParts(
            device=device,
            settings=settings,
            predictor=self._predictor,
            queues=self._queues,
            batches=self._batches,
            lanes=self._lanes,
            sharing=self._sharing,
        )
        self._dispatcher = Dispatcher(parts)
        self._early = EarlySteps(parts, self._dispatcher) if settings.early_steps else None
        self._first_tokens = FirstTokens(parts, self._early)
        self._answers = Answers(parts, self._first_tokens)
        self._results = LaunchResults(parts, self._answers, self._first_tokens)
        self._look = UnitLook(parts)
        self._readiness = LaneReadiness()
        self._neighbours = NeighbourSlowdown(parts)
        self._adapters = Adapters()
        self._prefixes = PrefixExchange(pool, self._queues, self._adapters)
        self._reporter = LoadReporter(parts, pool, self._neighbours, self.log, self._adapters)
        self._runner = StretchRunner(parts, self.log)
        self._steady = SteadyRunner(
            parts,
            dispatcher=self._dispatcher,
            readiness=self._readiness,
            neighbours=self._neighbours,
            log=self.log,
            look=self._look,
            note=self._log,
        )
        self._detached: list[str] = []
        self._stretch: DecodeStretch | None = None
        self._steps_total = 0
        self._now_s = 0.0  # of the last decision
        self._take_policy(policy)

    def on_event(self, event: Event, now_s: float) -> None:
        self._stretch = None
        if self._keeps_accounts and len(self._queues) > 1:
            self._neighbours.advance(now_s)
        match event:
            case Arrival(request=request, constraint=constraint):
                adapter = self._adapters.in_use.get(request.model)
                self._arrive(TokenSequence.from_request(request, now_s, constraint, adapter))
            case Abort(request_id=request_id):
                if (sequence := self._answers.unanswered.get(request_id)) is not None:
                    self._answers.end(sequence, FinishReason.ABORT)
                    self._finish_removal(self._queues[sequence.model])  # no launch ends a batch that goes with it
            case AttachAdapter(model=model, base=base, quota_blocks=quota_blocks):
                self._adapters.attach(model, self._queues[base], quota_blocks)
                self._set_quotas({model: quota_blocks})
            case RemoveModel(model=model):
                self._remove_model(model)
            case SetQuotas(quota_blocks=quotas):
                self._set_quotas(quotas)
            case ResizePool(total_blocks=total_blocks):
                self._pool.resize(total_blocks)
            case SetPolicy(policy=policy):
                self._take_policy(make_policy(policy))
                for queue in self._queues.values():
                    queue.reorder_waiting(target_aware=self._policy.target_aware)
            case AttachModel() | ReadDecisions() | ReadPrefix() | KeepPrefix() | Stop():
                raise AssertionError(f"{type(event).__name__} is for the engine loop")

    def attach_model(self, info: ModelInfo, quota_blocks: int) -> npt.NDArray[np.int64]:
        """Returns the row table `[max_rows, blocks_per_row]` for the executor."""
        self._stretch = None
        table = self._pool.add_model(info.model, info.geometry, quota_blocks)
        self._queues[info.model] = ModelQueue(info=info, pool=self._pool, caches_prefixes=self._settings.prefix_cache)
        self._adapters.lease({info.model: quota_blocks}, self._queues.values())
        return table

    def prefixes(self) -> PrefixExchange:
        """Whoever changes the pool from outside ends a stretch of decode."""
        self._stretch = None
        return self._prefixes

    def decide(self, now_s: float) -> Sequence[Launch]:
        """Launches to submit now, in order."""
        if self._keeps_accounts and len(self._queues) > 1:
            self._neighbours.advance(now_s)
        self._now_s = now_s
        stretch, self._stretch = self._stretch, None
        if stretch is not None and stretch.landed_s is not None and self._goes_on is not None:
            went_on = self._go_on(self._goes_on, stretch, now_s)
            return went_on if self._early is None else [*went_on, *self._early.offer()]
        launches: list[Launch] = [*self._answers.take_dropped()]
        for held in self._first_tokens.take_due(now_s):
            self._answers.hand_over(held, now_s)
        if not self._answers.unanswered:
            self._readiness.clear()
        elif not self._look.is_full:
            self._sharing.settle(now_s)
            state = self._look.look(now_s)
            if self._keeps_accounts:
                self._readiness.observe(state, now_s)
            actions = self._policy.choose(state, now_s)
            launches += self._dispatcher.act(actions, now_s)
            if self._goes_on is not None:
                self._stretch = stretch_from(state, actions, launches, holds_tokens=self._first_tokens.holds_any)
            self._refuse_outgrown()
        self._log(now_s, launches)
        return launches if self._early is None else [*launches, *self._early.offer()]

    def _go_on(self, policy: StretchPolicy, stretch: DecodeStretch, now_s: float) -> Sequence[Launch]:
        """Decides as `decide` does, in a stretch of decode (unit_look.py)."""
        queue = stretch.queue
        self._sharing.settle_growth(now_s, queue)
        view = stretch.view(self._device, self._settings, self._predictor, now_s)
        action = policy.go_on(view)
        launches = self._dispatcher.act((action,), now_s)
        if stretch.take_off(action, launches):
            self._stretch = stretch
        if queue.outgrown:
            self._refuse_outgrown()
        self._log(now_s, launches, ready_s=self._readiness.take_landed(Lane.DECODE))
        return launches

    def run_on(self, world: VirtualWorld, until_s: Callable[[], float]) -> RunAhead | None:
        """Goes on as turns of the loop would while launches end before what `until_s` says, as no event comes: in a
        stretch of decode (stretch_run.py), or of several models and prompts (steady_run.py). Nobody else is told of the
        tokens.
        """
        stretch, policy = self._stretch, self._goes_on
        if stretch is not None and policy is not None:
            return self._run_stretch(stretch, policy, world, until_s()) if stretch.landed_s is None else None
        if not self._sees_batches_only or self._first_tokens.holds_any:
            return None
        if policy is not None and not self._batches and self._is_single:
            return None  # a stretch begins
        ahead = self._steady.run(self._policy, world, until_s())
        if ahead is not None:
            self._note_ahead(ahead)
        return ahead

    @property
    def _is_single(self) -> bool:
        """One model at most decodes, and no prompt waits."""
        queues = self._queues.values()
        return len([q for q in queues if q.running]) < 2 and not any(q.waiting for q in queues)

    def _run_stretch(
        self, stretch: DecodeStretch, policy: StretchPolicy, world: VirtualWorld, until_s: float
    ) -> RunAhead | None:
        run = self._runner.run(stretch, policy, world, until_s)
        if run is None:
            return None
        steps = len(run.tokens.times_s)
        ahead = RunAhead(tokens=(run.tokens,), now_s=run.now_s, num_launches=steps, num_ends=steps)
        self._note_ahead(ahead)
        if run.pending is not None:
            self._switch(stretch, run.pending, world, run.now_s)
        return ahead

    def _note_ahead(self, ahead: RunAhead) -> None:
        self._steps_total += ahead.num_launches
        self._now_s = ahead.now_s
        if self._keeps_accounts:
            self._neighbours.advance(ahead.now_s)

    def _switch(self, stretch: DecodeStretch, action: Decode | Mixed, world: VirtualWorld, now_s: float) -> None:
        """Goes on with another launch than before."""
        (flight,) = self._lanes.flights()
        self._lanes.land(flight.launch, now_s)
        set_in_flight(stretch.queue.running, False)  # one of them may be preempted for the others' rows
        launches = self._dispatcher.act((action,), now_s)
        self._stretch = stretch if stretch.take_off(action, launches) else None
        self._refuse_outgrown()
        self._log(now_s, launches, ready_s=now_s)
        world.exchange((flight.launch,), launches, {stretch.queue.model: stretch.queue.context_tokens}, now_s)

    def _take_policy(self, policy: DispatchPolicy) -> None:
        self._policy = policy
        may_go_on = self._settings.decode_stretches
        self._sees_batches_only = isinstance(policy, BatchPolicy) and policy.sees_batches_only
        self._goes_on = policy if may_go_on and isinstance(policy, StretchPolicy) else None
        self._look.take_policy(policy)
        self._first_tokens.may_hold = policy.target_aware

    def _refuse_outgrown(self) -> None:
        for queue, sequence in [(q, s) for q in self._queues.values() for s in q.outgrown]:
            self._answers.refuse(queue, sequence)

    @property
    def _used_blocks(self) -> int:
        return self._pool.total_blocks - self._pool.free_blocks - self._pool.cached_blocks

    def _log(self, now_s: float, launches: Sequence[Launch], *, ready_s: float | None = None) -> None:
        """`ready_s`: since when the lane was ready, where that is known already."""
        for launch in launches:
            if isinstance(launch, DropPrefill | Repartition):
                if self._keeps_accounts:
                    self.log.instruct(now_s, launch)
            elif self._keeps_accounts or self._first_tokens.holds_any:
                flight = self._lanes.of(launch)
                predicted_s = flight.expected_s
                if len(launches) > 1:  # others took off after this one
                    predicted_s = self._predictor.expected_s(flight, beside_other_lane=self._lanes.both_busy)
                decoding_ids: tuple[str, ...] | None = None
                if isinstance(launch, DecodeStep):
                    self._first_tokens.expect(launch.sequences, now_s, now_s + predicted_s)
                    queue = self._queues[launch.model]
                    decoding_ids = queue.running_ids if len(launch.sequences) == len(queue.running) else None
                if not self._keeps_accounts:
                    continue
                self.log.take_off(
                    now_s,
                    launch,
                    predicted_s=predicted_s,
                    ready_s=ready_s or self._readiness.take(launch.lane, sms_left=self._lanes.sms_left(launch.lane)),
                    used_blocks=self._used_blocks,
                    decoding_ids=decoding_ids,
                )

    def on_completion(self, done: LaunchCompletion) -> None:
        launch = done.launch
        has_neighbours = self._keeps_accounts and len(self._queues) > 1
        if has_neighbours:
            self._neighbours.advance(done.finished_s)
        flight = self._lanes.land(launch, done.finished_s)
        if has_neighbours:
            self._neighbours.land(flight, done)
        if self._keeps_accounts:
            self._readiness.on_landing(launch.lane, done.finished_s)
            self.log.land(done)
        if done.error is None and not done.prompt_logprobs:  # else it took longer than its like
            self._predictor.learn(flight, done)
        self._steps_total += 1
        self._results.apply(done)
        if self._stretch is not None and not (done.error is None and self._stretch.land(done.finished_s)):
            self._stretch = None
        if self._early is not None and (step := self._early.follow(launch, done.finished_s)) is not None:
            self._stretch = None  # what this one brings is to come yet
            self._log(done.finished_s, (step,), ready_s=done.finished_s)
        self._finish_removal(self._queues[launch.model])

    def take_token_events(self) -> Sequence[TokenEvent]:
        """Takes what has been produced since the last call."""
        return self._answers.take_events()

    def take_detached(self) -> Sequence[str]:
        """Models whose removal is complete: nothing of them is in flight or in the pool any more."""
        detached, self._detached = self._detached, []
        return detached

    def next_deadline_s(self) -> float | None:
        """Returns when `decide` wants to be called although nothing has happened: a first token is to be handed
        over.
        """
        return self._first_tokens.next_due_s()

    def load_report(self) -> LoadReport:
        return self._reporter.report(self._steps_total, self._now_s)

    def load_for_gateways(self) -> LoadReport:
        """Returns the same without what gateways do not read: how the lanes were used. To gather that takes longest."""
        return self._reporter.report_of_models(self._steps_total, self._now_s)

    def check_integrity(self) -> None:
        """Asserts the invariants; for tests, after any step."""
        self._pool.check_integrity()
        held_blocks = self._pool.free_blocks + self._pool.cached_blocks
        for queue in self._queues.values():
            queue.check_integrity()
            resident = [*queue.sequences(), *self._batches.sequences(queue.model)]
            rows = {row for sequence in resident for row in sequence.rows}  # a cached prefix may have several users
            held_blocks += len(rows) * queue.info.geometry.blocks_per_row
        assert held_blocks == self._pool.total_blocks, "blocks leaked"

    def _arrive(self, sequence: TokenSequence) -> None:
        unanswered, request = self._answers.unanswered, sequence.request
        assert request.request_id not in unanswered, f"request id {request.request_id} is in use"
        unanswered[request.request_id] = sequence
        queue = self._queues.get(sequence.model)
        if self._answers.turns_away(sequence) or queue is None:
            return
        sequence.promised_tokens = queue.max_len
        queue.insert_waiting(sequence, target_aware=self._policy.target_aware)
        for counts in queue.counted(sequence):
            counts.prompt_tokens += len(sequence.token_ids)
        if not queue.takes(sequence):
            self._answers.refuse(queue, sequence)

    def _set_quotas(self, quota_blocks: Mapping[str, int]) -> None:
        self._pool.set_quotas(self._adapters.lease(quota_blocks, self._queues.values()))
        for queue in self._queues.values():
            for sequence in tuple(queue.waiting):  # what a lowered quota can never hold must not wait for ever
                if not queue.takes(sequence):
                    self._answers.refuse(queue, sequence)

    def _remove_model(self, model: str) -> None:
        base = self._adapters.leave(model)
        queue = self._queues.get(base or model)
        if queue is None:
            return
        queue.removing |= base is None
        for sequence in [s for s in self._answers.unanswered.values() if s.request.model == model]:
            self._answers.end(sequence, FinishReason.ERROR, f"model {model!r} has left this unit")
        self._finish_removal(queue)

    def _finish_removal(self, queue: ModelQueue) -> None:
        if queue.adapter_counts:
            gone = self._adapters.gone(queue, self._batches.sequences(queue.model))
            self._detached += gone
            if gone:
                self._set_quotas({})
        if queue.removing and queue.is_empty and not self._lanes.uses(queue.model):
            del self._queues[queue.model]
            self._pool.remove_model(queue.model)
            self._predictor.forget(queue.model)
            self._neighbours.forget(queue.model)
            self._detached.append(queue.model)
