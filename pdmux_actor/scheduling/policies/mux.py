"""The default policy: prefill and decode side by side, or fused where that is cheap enough.

First form. From MuxServe's ADBS: models take turns for the prefill lane, decodes of all models fill the decode lane.
From DuetServe §4.2: a prompt is fused into the decode step while the fused step meets the TBT target. From MuxWise
§3.4.1: otherwise decode gets the least share that meets the target, prefill the rest, in slices of N_PL layers.
"""

from collections.abc import Sequence

from pdmux_actor.scheduling.partition import least_decode_share
from pdmux_actor.scheduling.policies.base import Action, ContinuePrefill, Decode, Mixed, StartPrefill, UnitState
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.rotation import Rotation
from pdmux_actor.scheduling.slicing import layers_per_slice
from profiler.latency import ChunkShape


class Mux:
    name = "mux"

    def __init__(self) -> None:
        self._prefill_turn = Rotation()
        self._decode_turn = Rotation()
        self._lane_turn = Rotation()  # for a device that cannot be shared

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        if state.prefill_lane.busy and state.decode_lane.busy:
            return ()
        decoding = [q for q in state.queues.values() if q.running]
        prefilling = state.batch.model if state.batch is not None else self._next_prefill(state)
        if not decoding and prefilling is not None:
            return self._prefill(state, prefilling, state.device.num_sms, decode_s=None) if state.idle else ()
        if not decoding:
            return ()
        if prefilling is None:
            return self._decode(state, decoding, state.device.num_sms - state.prefill_lane.sms)
        fused = self._fused(state, prefilling, decoding)
        return (fused,) if fused is not None else self._side_by_side(state, prefilling, decoding)

    def _next_prefill(self, state: UnitState) -> str | None:
        return self._prefill_turn.peek(q.model for q in state.queues.values() if state.prefillable(q))

    def _side_by_side(self, state: UnitState, prefilling: str, decoding: Sequence[ModelQueue]) -> Sequence[Action]:
        target_s = min(q.tightest_tbt_s for q in decoding)
        share = least_decode_share(
            state.device, lambda sms: _decode_cycle_s(state, decoding, sms, overlap=True), target_s
        )
        if share is None:
            return self._alternate(state, prefilling, decoding)
        actions: list[Action] = []
        total_sms = state.device.num_sms
        if not state.decode_lane.busy:
            share = min(share, total_sms - state.prefill_lane.sms)
            actions += self._decode(state, decoding, share)
        decode_sms = state.decode_lane.sms if state.decode_lane.busy else share
        if not state.prefill_lane.busy and decode_sms < total_sms:
            decode_s = _decode_cycle_s(state, decoding, decode_sms, overlap=True)
            actions += self._prefill(state, prefilling, total_sms - decode_sms, decode_s=decode_s)
        return actions

    def _alternate(self, state: UnitState, prefilling: str, decoding: Sequence[ModelQueue]) -> Sequence[Action]:
        """A single SM cannot be shared in space, so the lanes take turns."""
        if not state.idle:
            return ()
        sms = state.device.num_sms
        if self._lane_turn.take(("decode", "prefill")) == "decode":
            return self._decode(state, decoding, sms)
        decode_s = _decode_cycle_s(state, decoding, sms, overlap=False)
        return self._prefill(state, prefilling, sms, decode_s=decode_s)

    def _prefill(self, state: UnitState, model: str, sms: int, decode_s: float | None) -> Sequence[Action]:
        """A slice that lasts about `decode_s` (all layers when None)."""
        queue = state.queues[model]
        spec = queue.info.spec
        batch = state.batch
        layers = batch.layers_left if batch is not None else spec.num_layers
        if decode_s is not None:
            shapes = batch.shapes if batch is not None else [_head_shape(queue)]
            prefill_s = state.predictor.prefill_s(model, spec, shapes, sms, overlap=True)
            layers = min(layers, layers_per_slice(decode_s, prefill_s, spec.num_layers))
        if batch is not None:
            return (ContinuePrefill(layers, sms),)
        self._prefill_turn.take([model])
        return (StartPrefill(model, layers, sms),)

    def _decode(self, state: UnitState, decoding: Sequence[ModelQueue], sms: int) -> Sequence[Action]:
        if state.decode_lane.busy or sms <= 0:
            return ()
        model = self._decode_turn.take(q.model for q in decoding if q.running)
        return () if model is None else (Decode(model, sms),)

    def _fused(self, state: UnitState, prefilling: str, decoding: Sequence[ModelQueue]) -> Mixed | None:
        """The waiting prompt fused into its model's decode step, if the other models' gaps bear it too."""
        queue = state.queues[prefilling]
        if state.batch is not None or not state.idle or not queue.running:
            return None
        shape = _head_shape(queue)
        if shape.new_tokens + len(queue.running) > state.settings.max_batch_tokens:
            return None
        sms = state.device.num_sms
        mixed_s = state.predictor.mixed_s(prefilling, queue.info.spec, [shape], queue.context_tokens, sms)
        others_s = _decode_cycle_s(state, [q for q in decoding if q is not queue], sms, overlap=False)
        if mixed_s + others_s > min(q.tightest_tbt_s for q in decoding):
            return None
        self._prefill_turn.take([prefilling])
        return Mixed(prefilling, shape.new_tokens + len(queue.running), sms)


def _head_shape(queue: ModelQueue) -> ChunkShape:
    return queue.chunk_shape(queue.partial[0] if queue.partial else queue.waiting[0])


def _decode_cycle_s(state: UnitState, decoding: Sequence[ModelQueue], sms: int, *, overlap: bool) -> float:
    """One decode step of every model in turn: the gap that each of them sees."""
    return sum(state.predictor.decode_s(q.model, q.info.spec, q.context_tokens, sms, overlap=overlap) for q in decoding)
