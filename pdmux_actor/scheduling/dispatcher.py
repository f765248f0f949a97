"""Turns what a policy asks for into launches: forms batches, grows KV, keeps the lanes' books."""

from collections.abc import Callable, Mapping, Sequence

from pdmux_actor.scheduling.batch import PrefillBatch
from pdmux_actor.scheduling.batching import grow_running, take_chunks
from pdmux_actor.scheduling.launch import (
    ComputeLaunch,
    DecodeStep,
    Lane,
    Launch,
    LaunchCompletion,
    MixedStep,
    PrefillSlice,
    Repartition,
    sampling_sequences,
)
from pdmux_actor.scheduling.launches_in_flight import LanesInFlight, LaunchInFlight
from pdmux_actor.scheduling.policies.base import Action, ContinuePrefill, Decode, Mixed, StartPrefill, UnitState
from pdmux_actor.scheduling.prediction import LatencyPredictor
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import TokenSequence
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.specs import DeviceSpec


class Dispatcher:
    """`batches` are the unit's prefill batches: the one under way last, before it at most one that it preempted."""

    def __init__(
        self,
        *,
        device: DeviceSpec,
        settings: SchedulerSettings,
        predictor: LatencyPredictor,
        queues: Mapping[str, ModelQueue],
        preempt: Callable[[TokenSequence], None],
        reclaim: Callable[[ModelQueue, int], None],
    ) -> None:
        self.batches: list[PrefillBatch] = []
        self.flight = LanesInFlight(device.num_sms)
        self._device = device
        self._settings = settings
        self._predictor = predictor
        self._queues = queues
        self._preempt = preempt
        self._reclaim = reclaim
        self._next_batch_id = 0

    @property
    def batch(self) -> PrefillBatch | None:
        return self.batches[-1] if self.batches else None

    def end_batch(self, batch: PrefillBatch) -> None:
        self.batches.remove(batch)
        self._queues[batch.model].num_prefilling -= len(batch.chunks)

    @property
    def is_full(self) -> bool:
        """Nothing more can be launched before something lands."""
        flight = self.flight
        if not flight.both_busy:
            return False
        if flight.num_decodes >= self._settings.decode_lanes or not any(flight.decode_gaps()):
            return True
        return not any(queue.running and not flight.decodes(queue.model) for queue in self._queues.values())

    def state(self) -> UnitState:
        return UnitState(
            device=self._device,
            settings=self._settings,
            predictor=self._predictor,
            queues=self._queues,
            batch=self.batch,
            suspended=self.batches[0] if len(self.batches) > 1 else None,
            prefill_lane=self.flight.lane_state(Lane.PREFILL),
            decode_lane=self.flight.lane_state(Lane.DECODE),
            lanes=self.flight,
        )

    def land(self, done: LaunchCompletion) -> None:
        """Frees the lane and lets the predictions learn. Before the completion is applied to the sequences."""
        flight = self.flight.land(done.launch, done.finished_s)
        if done.error is None:
            self._predictor.learn(flight, _contexts_of(done.launch) if flight.company_s else (), done)
        if done.sequence_errors:
            sampling = sampling_sequences(done.launch, self._queues[done.launch.model].info.spec.num_layers)
            for place in done.sequence_errors:
                sampling[place].kv_is_sound = False

    def next_token_s(self, now_s: float, tbt_s: float) -> float:
        """When a sequence that joins now is expected to have its next token: after the decode step in flight, and one
        of every model. Where prompts are there, such a step may be given as few SMs as its target `tbt_s` bears.
        """
        decode = self.flight.lane_state(Lane.DECODE)
        rest_s = max(0.0, decode.ends_s - now_s) if decode.busy else 0.0
        sms = decode.sms or self.flight.partition.decode_sms or self._device.num_sms
        cycle_s = 0.0
        for queue in self._queues.values():
            if queue.running:
                cycle_s += self._predictor.decode_s(queue.model, queue.info.spec, queue.context_tokens, sms)
        if self.batches or any(queue.waiting or queue.partial for queue in self._queues.values()):
            cycle_s = max(cycle_s, tbt_s)
        return now_s + rest_s + cycle_s

    def act(self, actions: Sequence[Action], now_s: float) -> list[Launch]:
        """Launches for what a policy chose, in order."""
        launches: list[Launch] = []
        ahead_sms = 0
        if len(actions) > 1:
            ahead_sms = sum([action.sms for action in actions if isinstance(action, Decode)])
        for action in actions:
            if isinstance(action, Decode):
                ahead_sms = max(0, ahead_sms - action.sms)
                launches += self._decode(action, ahead_sms, now_s)
            else:
                launches += self._prefill_or_mix(action, now_s)
        return launches

    def _prefill_or_mix(self, action: StartPrefill | ContinuePrefill | Mixed, now_s: float) -> list[Launch]:
        match action:
            case StartPrefill():
                return self._start_prefill(action, now_s)
            case ContinuePrefill(layers=layers, sms=sms):
                assert self.batch is not None
                return self._slice(self.batch, layers, sms, now_s)
            case Mixed(model=model, token_budget=budget, sms=sms):
                return self._mixed(self._queues[model], budget, sms, now_s)

    def _start_prefill(self, action: StartPrefill, now_s: float) -> list[Launch]:
        assert len(self.batches) < 2, "a batch that preempts is not preempted"
        queue, budget = self._queues[action.model], action.token_budget
        chunks = take_chunks(
            queue,
            self._settings,
            self._settings.max_batch_tokens if budget is None else budget,
            whole_prompts=budget is None,
            max_prompts=action.max_prompts,
        )
        if not chunks:
            return []
        self._next_batch_id += 1
        queue.num_prefilling += len(chunks)
        batch = PrefillBatch(self._next_batch_id, queue.model, tuple(chunks), queue.info.spec.num_layers)
        self.batches.append(batch)
        return self._slice(batch, action.layers, action.sms, now_s)

    def _slice(self, batch: PrefillBatch, layers: int, sms: int, now_s: float) -> list[Launch]:
        last_layer = min(batch.num_layers, batch.next_layer + layers)
        launch = PrefillSlice(
            batch_id=batch.batch_id,
            model=batch.model,
            chunks=batch.chunks,
            first_layer=batch.next_layer,
            last_layer=last_layer,
        )
        batch.in_flight = True
        batch.on_last_slice = last_layer == batch.num_layers
        partition = self.flight.place_prefill(sms)
        return self._take_off(launch, partition, self._device.num_sms - sms, sms, now_s)

    def _decode(self, action: Decode, ahead_sms: int, now_s: float) -> list[Launch]:
        """None when KV ran out meanwhile. `ahead_sms` are those of decodes that follow."""
        queue, steps = self._queues[action.model], action.steps
        if steps > 1:
            steps = min(steps, queue.look_ahead_room())
        sequences = grow_running(queue, steps, self._preempt, self._reclaim)
        if not sequences:
            return []
        set_in_flight(sequences, True)
        part, partition = self.flight.place_decode(action.sms, ahead_sms=ahead_sms)
        launch = DecodeStep(model=queue.model, sequences=tuple(sequences), steps=steps, part=part)
        return self._take_off(launch, partition, 0 if part is None else part.first_sm, action.sms, now_s)

    def _mixed(self, queue: ModelQueue, token_budget: int, sms: int, now_s: float) -> list[Launch]:
        sequences = grow_running(queue, 1, self._preempt, self._reclaim)
        chunks = take_chunks(queue, self._settings, token_budget - len(sequences), whole_prompts=False)
        if not chunks and not sequences:
            return []
        queue.partial.extend(chunk.sequence for chunk in chunks)
        set_in_flight([*(chunk.sequence for chunk in chunks), *sequences], True)
        part, partition = self.flight.place_decode(sms)
        assert part is None, "a fused step has the decode share to itself"
        launch = MixedStep(model=queue.model, chunks=tuple(chunks), sequences=tuple(sequences))
        return self._take_off(launch, partition, 0, sms, now_s)

    def _take_off(
        self, launch: ComputeLaunch, partition: Repartition | None, first_sm: int, sms: int, now_s: float
    ) -> list[Launch]:
        spec = self._queues[launch.model].info.spec
        modelled_s = self._predictor.modelled_s(spec, launch, sms)
        flight = LaunchInFlight(launch=launch, sms=sms, modelled_s=modelled_s, took_off_s=now_s, first_sm=first_sm)
        if self._settings.decode_lanes > 1:
            flight.demand = self._predictor.demand(self._device, spec, flight)
        self.flight.take_off(flight)
        flight.expected_s = self._predictor.expected_s(flight, beside_other_lane=self.flight.both_busy)
        return [launch] if partition is None else [partition, launch]


def _contexts_of(launch: ComputeLaunch) -> list[int]:
    return [len(s.token_ids) for s in launch.sequences] if isinstance(launch, DecodeStep) else []


def set_in_flight(sequences: Sequence[TokenSequence], value: bool) -> None:
    for sequence in sequences:
        sequence.in_flight = value
