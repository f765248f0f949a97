"""Turns what a policy asks for into launches: forms batches, grows KV, places them on the lanes."""

from collections.abc import Sequence

from pdmux_actor.scheduling.batching import PrefillBatch, grow_running, take_chunks
from pdmux_actor.scheduling.launch import (
    ComputeLaunch,
    DecodeStep,
    Launch,
    MixedStep,
    PrefillSlice,
    Repartition,
    set_in_flight,
)
from pdmux_actor.scheduling.launches_in_flight import LaunchInFlight
from pdmux_actor.scheduling.policies.base import Action, ContinuePrefill, Decode, Mixed, StartPrefill
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.unit_parts import UnitParts


class Dispatcher:
    """Turns a policy's actions into launches, which it notes on the `lanes` and in the `batches` that it was given."""

    def __init__(self, parts: UnitParts) -> None:
        self._device = parts.device
        self._settings = parts.settings
        self._predictor = parts.predictor
        self._queues = parts.queues
        self._batches = parts.batches
        self._lanes = parts.lanes
        self._sharing = parts.sharing

    def act(self, actions: Sequence[Action], now_s: float) -> list[Launch]:
        """Launches for what a policy chose, in order. Where decode finds no KV and the batch under way may hold what it
        lacks, the batch goes on: nothing else would end, and so free any.
        """
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
        batch = self._batches.current
        if launches or not actions or batch is None or self._lanes.flights():
            return launches
        return self._slice(batch, batch.layers_left, self._device.num_sms, now_s)

    def _prefill_or_mix(self, action: StartPrefill | ContinuePrefill | Mixed, now_s: float) -> list[Launch]:
        match action:
            case StartPrefill():
                return self._start_prefill(action, now_s)
            case ContinuePrefill(layers=layers, sms=sms):
                batch = self._batches.current
                assert batch is not None
                return self._slice(batch, layers, sms, now_s)
            case Mixed():
                return self._mixed(self._queues[action.model], action, now_s)

    def _start_prefill(self, action: StartPrefill, now_s: float) -> list[Launch]:
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
        return self._slice(self._batches.start(queue, chunks), action.layers, action.sms, now_s)

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
        partition = self._lanes.place_prefill(sms)
        return self._take_off(launch, partition, self._device.num_sms - sms, sms, now_s)

    def _decode(self, action: Decode, ahead_sms: int, now_s: float) -> list[Launch]:
        """None when KV ran out meanwhile. `ahead_sms` are those of decodes that follow."""
        queue, steps = self._queues[action.model], action.steps
        if steps > 1:
            steps = min(steps, queue.look_ahead_room())
        sequences = grow_running(queue, steps, self._sharing)
        if not sequences:
            return []
        set_in_flight(sequences, True)
        part, partition = self._lanes.place_decode(action.sms, ahead_sms=ahead_sms)
        launch = DecodeStep(model=queue.model, sequences=sequences, steps=steps, part=part)
        contexts = queue.context_tokens if len(sequences) == len(queue.running) else None
        first_sm = 0 if part is None else part.first_sm
        return self._take_off(launch, partition, first_sm, action.sms, now_s, contexts)

    def _mixed(self, queue: ModelQueue, action: Mixed, now_s: float) -> list[Launch]:
        sequences, sms = grow_running(queue, 1, self._sharing), action.sms
        chunks = take_chunks(queue, self._settings, action.token_budget - len(sequences), whole_prompts=False)
        if not chunks and not sequences:
            return []
        queue.partial.extend(chunk.sequence for chunk in chunks)
        set_in_flight([*(chunk.sequence for chunk in chunks), *sequences], True)
        part, partition = self._lanes.place_decode(sms)
        assert part is None, "a fused step has the decode share to itself"
        launch = MixedStep(
            model=queue.model, chunks=tuple(chunks), sequences=sequences, nano_batches=action.nano_batches
        )
        return self._take_off(launch, partition, 0, sms, now_s)

    def take_off_early(self, step: DecodeStep, sms: int, now_s: float) -> None:
        """Notes that a step which was handed out before is in flight now (early_steps.py)."""
        self._take_off(step, None, 0, sms, now_s)

    def _take_off(
        self,
        launch: ComputeLaunch,
        partition: Repartition | None,
        first_sm: int,
        sms: int,
        now_s: float,
        contexts: Sequence[int] | None = None,
    ) -> list[Launch]:
        """`contexts` are those of a decode's sequences, where they are known."""
        spec = self._queues[launch.model].info.spec
        modelled_s = self._predictor.modelled_s(spec, launch, sms, contexts)
        flight = LaunchInFlight(
            launch=launch, sms=sms, modelled_s=modelled_s, took_off_s=now_s, contexts=contexts, first_sm=first_sm
        )
        if self._settings.decode_lanes > 1:
            flight.draws = self._predictor.demand(self._device, spec, flight)
        self._lanes.take_off(flight)
        flight.expected_s = self._predictor.expected_s(flight, beside_other_lane=self._lanes.both_busy)
        return [launch] if partition is None else [partition, launch]
