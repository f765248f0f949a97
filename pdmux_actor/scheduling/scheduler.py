"""The sans-I/O scheduler of a unit: events and completions in, launches and token events out.

It never sleeps, reads a clock, awaits, or touches a tensor. Policies choose, this class makes it so: it forms batches,
allocates KV, preempts, applies results and answers every request exactly once.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pdmux_actor.kv.block_pool import BlockPool
from pdmux_actor.messages import FinishReason, GenerateRequest, LoadReport, SampledToken, TokenEvent
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.batch import PrefillBatch
from pdmux_actor.scheduling.block_sharing import BlockSharing
from pdmux_actor.scheduling.completion import append_tokens
from pdmux_actor.scheduling.decision_log import DecisionLog
from pdmux_actor.scheduling.dispatcher import Dispatcher, set_in_flight
from pdmux_actor.scheduling.events import (
    Abort,
    Arrival,
    AttachModel,
    Event,
    ReadDecisions,
    RemoveModel,
    SetPolicy,
    SetQuotas,
    Stop,
)
from pdmux_actor.scheduling.first_tokens import FirstTokens, HeldToken
from pdmux_actor.scheduling.launch import (
    Chunk,
    DecodeStep,
    DropPrefill,
    Launch,
    LaunchCompletion,
    MixedStep,
    PrefillSlice,
    Repartition,
    sampling_sequences,
)
from pdmux_actor.scheduling.load_reporter import LoadReporter
from pdmux_actor.scheduling.policies.base import DispatchPolicy, UnitState
from pdmux_actor.scheduling.policies.registry import make_policy
from pdmux_actor.scheduling.prediction import LatencyPredictor
from pdmux_actor.scheduling.prompt_order import PromptOrder
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.readiness import LaneReadiness
from pdmux_actor.scheduling.sequence import Precedence, SequenceStatus, TokenSequence
from pdmux_actor.scheduling.settings import SchedulerSettings
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
        self._policy = policy
        self._device = device
        self._pool = pool
        self._caches_prefixes = settings.prefix_cache
        self._predictor = LatencyPredictor(latency, guard)
        self._queues: dict[str, ModelQueue] = {}
        self._sequences: dict[str, TokenSequence] = {}  # every request that has not been answered
        self._sharing = BlockSharing(pool, self._queues, settings, self._preempt)
        self._dispatcher = Dispatcher(
            device=device,
            settings=settings,
            predictor=self._predictor,
            queues=self._queues,
            preempt=self._preempt,
            reclaim=self._sharing.reclaim,
        )
        self._prompt_order = PromptOrder()
        self._first_tokens = FirstTokens()
        self._readiness = LaneReadiness()
        self._reporter = LoadReporter(pool, self._predictor, self.log, device.num_sms)
        self._dropped: list[Launch] = []
        self._token_events: list[TokenEvent] = []
        self._detached: list[str] = []
        self._steps_total = 0
        self._now_s = 0.0  # of the last decision

    # ---- what the engine loop calls ----

    def on_event(self, event: Event, now_s: float) -> None:
        match event:
            case Arrival(request=request):
                self._arrive(request, now_s)
            case Abort(request_id=request_id):
                if request_id in self._sequences:
                    self._end(self._sequences[request_id], FinishReason.ABORT)
            case RemoveModel(model=model):
                self._remove_model(model)
            case SetQuotas(quota_blocks=quotas):
                self._set_quotas(quotas)
            case SetPolicy(policy=policy):
                self._policy = make_policy(policy)
                for queue in self._queues.values():
                    queue.reorder_waiting(target_aware=self._policy.target_aware)
            case AttachModel() | ReadDecisions() | Stop():
                raise AssertionError(f"{type(event).__name__} is for the engine loop")

    def attach_model(self, info: ModelInfo, quota_blocks: int) -> npt.NDArray[np.int64]:
        """Returns the row table `[max_rows, blocks_per_row]` for the executor."""
        table = self._pool.add_model(info.model, info.geometry, quota_blocks)
        self._queues[info.model] = ModelQueue(info=info, pool=self._pool, caches_prefixes=self._caches_prefixes)
        return table

    def decide(self, now_s: float) -> Sequence[Launch]:
        """Launches to submit now, in order."""
        launches, self._dropped = self._dropped, []
        self._now_s = now_s
        for held in self._first_tokens.take_due(now_s):
            self._hand_over(held, now_s)
        if not self._sequences:
            self._readiness.clear()
        elif not self._dispatcher.is_full:
            self._sharing.settle(now_s)
            state = self._state(now_s)
            self._readiness.observe(state, now_s)
            launches += self._dispatcher.act(self._policy.choose(state, now_s), now_s)
        self._log(now_s, launches)
        return launches

    def _state(self, now_s: float) -> UnitState:
        """What the policy sees. Where a prompt may start, those that wait are in its order."""
        state = self._dispatcher.state()
        if self._policy.target_aware:
            prefill_sms = self._dispatcher.flight.partition.prefill_sms or self._device.num_sms
            if self._prompt_order.arrange(state, now_s, prefill_sms=prefill_sms):
                state = self._dispatcher.state()
            state.share_in_time = self._prompt_order.share_in_time
        return state

    def _log(self, now_s: float, launches: Sequence[Launch]) -> None:
        for launch in launches:
            if isinstance(launch, DropPrefill | Repartition):
                self.log.instruct(now_s, launch)
            else:
                flight = self._dispatcher.flight.of(launch)
                predicted_s = flight.expected_s
                if len(launches) > 1:  # others took off after this one
                    beside = self._dispatcher.flight.both_busy
                    predicted_s = self._predictor.expected_s(flight, beside_other_lane=beside)
                if isinstance(launch, DecodeStep):
                    self._first_tokens.expect(launch.sequences, now_s, now_s + predicted_s)
                self.log.take_off(
                    now_s,
                    launch,
                    predicted_s=predicted_s,
                    ready_s=self._readiness.take(launch.lane, sms_left=self._dispatcher.flight.sms_left(launch.lane)),
                    used_blocks=self._pool.total_blocks - self._pool.free_blocks - self._pool.cached_blocks,
                )

    def on_completion(self, done: LaunchCompletion) -> None:
        launch = done.launch
        queue = self._queues[launch.model]
        self._dispatcher.land(done)
        self._readiness.on_landing(launch.lane, done.finished_s)
        self.log.land(done)
        self._steps_total += 1
        if isinstance(launch, PrefillSlice):
            self._complete_slice(queue, launch, done)
        else:
            self._complete_step(queue, launch, done)
        self._finish_removal(queue)

    def take_token_events(self) -> Sequence[TokenEvent]:
        """What has been produced since the last call."""
        events, self._token_events = self._token_events, []
        return events

    def take_detached(self) -> Sequence[str]:
        """Models whose removal is complete: nothing of them is in flight or in the pool any more."""
        detached, self._detached = self._detached, []
        return detached

    def next_deadline_s(self) -> float | None:
        """When `decide` wants to be called although nothing has happened: a first token is to be handed over."""
        return self._first_tokens.next_due_s()

    def load_report(self) -> LoadReport:
        return self._reporter.report(self._queues.values(), self._dispatcher.flight, self._steps_total, self._now_s)

    def check_integrity(self) -> None:
        """Asserts the invariants; for tests, after any step."""
        self._pool.check_integrity()
        held_blocks = self._pool.free_blocks + self._pool.cached_blocks
        for queue in self._queues.values():
            queue.check_integrity()
            resident = list(queue.sequences())
            for batch in self._dispatcher.batches:
                resident += [chunk.sequence for chunk in batch.chunks if batch.model == queue.model]
            rows = {row for sequence in resident for row in sequence.rows}  # a cached prefix may have several users
            held_blocks += len(rows) * queue.info.geometry.blocks_per_row
        assert held_blocks == self._pool.total_blocks, "blocks leaked"

    # ---- arrivals, aborts, removal ----

    def _arrive(self, request: GenerateRequest, now_s: float) -> None:
        assert request.request_id not in self._sequences, f"request id {request.request_id} is in use"
        sequence = TokenSequence.from_request(request, now_s)
        self._sequences[request.request_id] = sequence
        queue = self._queues.get(request.model)
        if queue is None or queue.removing:
            return self._answer(sequence, (), FinishReason.ERROR, f"model {request.model!r} is not on this unit")
        stranger = sequence.token_outside(queue.info.spec.vocab_size)
        if stranger is not None:  # in a launch it would fail the sequences beside it too
            reason = f"token id {stranger} is not in the vocabulary of model {request.model!r}"
            return self._answer(sequence, (), FinishReason.ERROR, f"{reason}; tokenise with the model's own tokenizer")
        queue.insert_waiting(sequence, target_aware=self._policy.target_aware)
        queue.prompt_tokens_total += len(sequence.token_ids)
        self._refuse_if_too_long(queue, sequence)

    def _refuse_if_too_long(self, queue: ModelQueue, waiting: TokenSequence) -> None:
        known, limit = len(waiting.token_ids), queue.max_len
        if not 0 < known < limit:
            reason = f"{known} tokens do not fit: model {queue.model!r} takes 1 to {limit - 1} on this unit"
            remedy = "shorten the prompt, or raise the model's max_model_len or its KV quota"
            # The quota changes while models move, and is another one on other units: the request is given back.
            finish = FinishReason.ABORT if 0 < known < queue.info.max_model_len else FinishReason.ERROR
            self._end(waiting, finish, f"{reason}; {remedy}")

    def _set_quotas(self, quota_blocks: Mapping[str, int]) -> None:
        self._pool.set_quotas({m: blocks for m, blocks in quota_blocks.items() if m in self._queues})
        for queue in self._queues.values():
            for sequence in tuple(queue.waiting):  # what a lowered quota can never hold must not wait for ever
                self._refuse_if_too_long(queue, sequence)

    def _remove_model(self, model: str) -> None:
        queue = self._queues.get(model)
        if queue is None:
            return
        queue.removing = True
        for sequence in [s for s in self._sequences.values() if s.model == model]:
            self._end(sequence, FinishReason.ERROR, f"model {model!r} has left this unit")
        self._finish_removal(queue)

    def _finish_removal(self, queue: ModelQueue) -> None:
        if queue.removing and queue.is_empty and not self._dispatcher.flight.uses(queue.model):
            del self._queues[queue.model]
            self._pool.remove_model(queue.model)
            self._predictor.forget(queue.model)
            self._detached.append(queue.model)

    # ---- results ----

    def _complete_slice(self, queue: ModelQueue, launch: PrefillSlice, done: LaunchCompletion) -> None:
        batch = self._dispatcher.batch
        assert batch is not None
        assert batch.batch_id == launch.batch_id
        batch.in_flight = False
        batch.next_layer = launch.last_layer
        if done.error is not None:
            self._fail([chunk.sequence for chunk in batch.chunks], done.error)
        elif batch.layers_left == 0:
            self._dispatcher.end_batch(batch)
            self._advance(queue, launch.chunks)
            self._apply_tokens(queue, sampling_sequences(launch, batch.num_layers), done)
        self._drop_if_deserted(batch)

    def _complete_step(self, queue: ModelQueue, launch: DecodeStep | MixedStep, done: LaunchCompletion) -> None:
        chunks = launch.chunks if isinstance(launch, MixedStep) else ()
        involved = [*[chunk.sequence for chunk in chunks], *launch.sequences] if chunks else launch.sequences
        set_in_flight(involved, False)
        if done.error is not None:
            for sequence in [s for s in involved if s.pending_finish is not None]:
                self._release(sequence)
            self._fail(involved, done.error)
            return
        for chunk in chunks:
            queue.partial.remove(chunk.sequence)
        if chunks:
            self._advance(queue, chunks)
        self._apply_tokens(queue, sampling_sequences(launch, queue.info.spec.num_layers), done)

    def _advance(self, queue: ModelQueue, chunks: Sequence[Chunk]) -> None:
        """The chunks' tokens have KV now: complete prompts run, the others are next in line for their next chunk."""
        for chunk in reversed(chunks):
            sequence = chunk.sequence
            sequence.num_computed_tokens = chunk.start + chunk.length
            if sequence.pending_finish is not None:
                self._release(sequence)
            elif chunk.samples:
                queue.cache_computed(sequence)
                sequence.status = SequenceStatus.RUNNING
                queue.insert_running(sequence)
            else:
                queue.partial.appendleft(sequence)

    def _apply_tokens(self, queue: ModelQueue, sequences: Sequence[TokenSequence], done: LaunchCompletion) -> None:
        max_len, eos, errors = queue.max_len, queue.info.eos_token_ids, done.sequence_errors
        for place, (sequence, sampled) in enumerate(zip(sequences, done.tokens, strict=True)):
            if sequence.pending_finish is not None:  # answered while the launch was in flight
                if sequence.status is not SequenceStatus.FINISHED:
                    self._release(sequence)
                continue
            if errors and place in errors:
                self._end(sequence, FinishReason.ERROR, errors[place])
                continue
            tokens, finish = append_tokens(sequence, sampled, eos, max_len)
            sequence.num_computed_tokens = len(sequence.token_ids) - 1
            if sequence.first_token_s is None:
                waits = finish is None and self._policy.target_aware
                if waits and self._first_tokens.hold(sequence, tokens, done.finished_s, self._dispatcher.next_token_s):
                    continue
                self._hand_over(self._first_tokens.take(sequence.request.request_id), done.finished_s)
            queue.note_tokens(sequence, len(tokens), done.finished_s)
            self._answer(sequence, tokens, finish)
            if finish is not None:
                self._release(sequence)

    def _hand_over(self, held: HeldToken | None, now_s: float) -> None:
        if held is not None:
            self._queues[held.sequence.model].note_tokens(held.sequence, len(held.tokens), now_s)
            self._answer(held.sequence, held.tokens, None)

    # ---- how sequences end ----

    def _answer(
        self,
        sequence: TokenSequence,
        tokens: tuple[SampledToken, ...],
        finish: FinishReason | None,
        error: str | None = None,
    ) -> None:
        """The only place that reports tokens and ends: a request leaves `_sequences` with its one finish."""
        request_id = sequence.request.request_id
        self._token_events.append(TokenEvent(request_id=request_id, tokens=tokens, finish=finish, error=error))
        if finish is not None:
            self._first_tokens.take(request_id)
            sequence.pending_finish = finish
            del self._sequences[request_id]
            if (queue := self._queues.get(sequence.model)) is not None:
                queue.note_end(sequence, finish)

    def _end(self, sequence: TokenSequence, reason: FinishReason, error: str | None = None) -> None:
        """Answers the request now; its KV goes at once, or when the launch that uses it has completed."""
        self._answer(sequence, (), reason, error)
        batch = next((b for b in self._dispatcher.batches if b.holds(sequence)), None)
        if batch is not None:
            self._drop_if_deserted(batch)
        elif not sequence.in_flight:
            self._release(sequence)

    def _fail(self, sequences: Sequence[TokenSequence], error: str) -> None:
        for sequence in sequences:
            if sequence.pending_finish is None:
                self._end(sequence, FinishReason.ERROR, error)

    def _drop_if_deserted(self, batch: PrefillBatch) -> None:
        """A batch whose every request has ended is of no use; between slices it goes at once."""
        wanted = any(chunk.sequence.pending_finish is None for chunk in batch.chunks)
        if wanted or batch.in_flight or batch not in self._dispatcher.batches:
            return
        self._dispatcher.end_batch(batch)
        for chunk in batch.chunks:
            self._release(chunk.sequence)
        self._dropped.append(DropPrefill(batch_id=batch.batch_id))

    def _preempt(self, victim: TokenSequence) -> None:
        """Gives a running sequence's KV back; it is recomputed ahead of everything that waits."""
        assert not victim.in_flight
        assert victim.status is SequenceStatus.RUNNING
        queue = self._queues[victim.model]
        self._withdraw(victim)
        victim.num_computed_tokens = 0
        victim.status = SequenceStatus.WAITING
        victim.precedence = Precedence.FIRST
        queue.waiting.appendleft(victim)
        queue.preemptions_total += 1
        self._refuse_if_too_long(queue, victim)  # after the quota was lowered below what it needs

    def _release(self, sequence: TokenSequence) -> None:
        self._withdraw(sequence)
        sequence.status = SequenceStatus.FINISHED

    def _withdraw(self, sequence: TokenSequence) -> None:
        """Out of its queue (a batch's sequences are in none), and its KV rows back to the pool."""
        assert sequence.status is not SequenceStatus.FINISHED
        queue = self._queues[sequence.model]
        queue.discard(sequence)
        queue.cache_computed(sequence)
        self._pool.free_rows(queue.model, sequence.rows)
        sequence.rows = []
