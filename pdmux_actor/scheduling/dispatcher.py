"""Turns what a policy asks for into launches: forms batches, grows KV, keeps the lanes' books."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

from pdmux_actor.scheduling.batch import PrefillBatch
from pdmux_actor.scheduling.batching import grow_running, take_chunks
from pdmux_actor.scheduling.flight import LanesInFlight
from pdmux_actor.scheduling.launch import (
    Completion,
    ComputeLaunch,
    DecodeStep,
    Lane,
    Launch,
    MixedStep,
    PrefillSlice,
    lane_of,
)
from pdmux_actor.scheduling.policies.base import Action, ContinuePrefill, Decode, Mixed, StartPrefill, UnitState
from pdmux_actor.scheduling.prediction import LatencyPredictor
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import Sequence
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.specs import DeviceSpec


class Dispatcher:
    """`batch` is the unit's prefill batch, None between batches; the scheduler ends it."""

    def __init__(
        self,
        *,
        device: DeviceSpec,
        settings: SchedulerSettings,
        predictor: LatencyPredictor,
        queues: Mapping[str, ModelQueue],
        preempt: Callable[[Sequence], None],
    ) -> None:
        self.batch: PrefillBatch | None = None
        self.flight = LanesInFlight(device.num_sms)
        self._device = device
        self._settings = settings
        self._predictor = predictor
        self._queues = queues
        self._preempt = preempt
        self._next_batch_id = 0

    def state(self) -> UnitState:
        return UnitState(
            device=self._device,
            settings=self._settings,
            predictor=self._predictor,
            queues=self._queues,
            batch=self.batch,
            prefill_lane=self.flight.lane_state(Lane.PREFILL),
            decode_lane=self.flight.lane_state(Lane.DECODE),
        )

    def land(self, done: Completion) -> None:
        """Frees the lane and lets the predictions learn."""
        landing = self.flight.land(done.launch)
        if landing.predicted_s is not None and done.error is None:
            self._predictor.observe(
                done.launch.model,
                landing.phase,
                overlap=landing.overlapped,
                predicted_s=landing.predicted_s,
                measured_s=done.finished_s - done.started_s,
            )

    def act(self, action: Action) -> list[Launch]:
        """Launches for one action; none when KV ran out meanwhile."""
        match action:
            case StartPrefill(model=model, layers=layers, sms=sms):
                return self._start_prefill(self._queues[model], layers, sms)
            case ContinuePrefill(layers=layers, sms=sms):
                assert self.batch is not None
                return self._slice(self.batch, layers, sms)
            case Decode(model=model, sms=sms, steps=steps):
                return self._decode(self._queues[model], steps, sms)
            case Mixed(model=model, token_budget=budget, sms=sms):
                return self._mixed(self._queues[model], budget, sms)

    def _start_prefill(self, queue: ModelQueue, layers: int, sms: int) -> list[Launch]:
        assert self.batch is None, "one prefill batch at a time"
        chunks = take_chunks(queue, self._settings, self._settings.max_batch_tokens, whole_prompts=True)
        if not chunks:
            return []
        self._next_batch_id += 1
        queue.num_prefilling = len(chunks)
        self.batch = PrefillBatch(self._next_batch_id, queue.model, tuple(chunks), queue.info.spec.num_layers)
        return self._slice(self.batch, layers, sms)

    def _slice(self, batch: PrefillBatch, layers: int, sms: int) -> list[Launch]:
        last_layer = min(batch.num_layers, batch.next_layer + layers)
        launch = PrefillSlice(
            batch_id=batch.batch_id,
            model=batch.model,
            chunks=batch.chunks,
            first_layer=batch.next_layer,
            last_layer=last_layer,
        )
        batch.in_flight = True
        spec, overlap = self._queues[batch.model].info.spec, self.flight.busy(Lane.DECODE)
        whole_s = self._predictor.prefill_s(batch.model, spec, batch.shapes, sms, overlap=overlap)
        return self._take_off(launch, sms, whole_s * (last_layer - launch.first_layer) / batch.num_layers)

    def _decode(self, queue: ModelQueue, steps: int, sms: int) -> list[Launch]:
        sequences = grow_running(queue, steps, self._preempt)
        if not sequences:
            return []
        set_in_flight(sequences, True)
        launch = DecodeStep(model=queue.model, sequences=tuple(sequences), steps=steps)
        contexts, overlap = [len(s.token_ids) for s in sequences], self.flight.busy(Lane.PREFILL)
        step_s = self._predictor.decode_s(queue.model, queue.info.spec, contexts, sms, overlap=overlap)
        return self._take_off(launch, sms, steps * step_s)

    def _mixed(self, queue: ModelQueue, token_budget: int, sms: int) -> list[Launch]:
        sequences = grow_running(queue, 1, self._preempt)
        chunks = take_chunks(queue, self._settings, token_budget - len(sequences), whole_prompts=False)
        if not chunks and not sequences:
            return []
        queue.partial.extend(chunk.sequence for chunk in chunks)
        set_in_flight([*(chunk.sequence for chunk in chunks), *sequences], True)
        launch = MixedStep(model=queue.model, chunks=tuple(chunks), sequences=tuple(sequences))
        contexts = [len(s.token_ids) for s in sequences]
        shapes = [chunk.shape for chunk in chunks]
        return self._take_off(launch, sms, self._predictor.mixed_s(queue.model, queue.info.spec, shapes, contexts, sms))

    def _take_off(self, launch: ComputeLaunch, sms: int, predicted_s: float) -> list[Launch]:
        partition = self.flight.repartition(lane_of(launch), sms)
        self.flight.take_off(launch, sms, predicted_s)
        return [launch] if partition is None else [partition, launch]


def set_in_flight(sequences: Seq[Sequence], value: bool) -> None:
    for sequence in sequences:
        sequence.in_flight = value
