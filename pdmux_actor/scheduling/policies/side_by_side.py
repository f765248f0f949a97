"""Prefill and decode at once, on shares that meet the TBT target (MuxWise §3.4). What `mux` and `muxwise` share."""

from collections.abc import Sequence
from dataclasses import dataclass

from pdmux_actor.scheduling.batching import preview_chunks
from pdmux_actor.scheduling.partition import least_decode_share
from pdmux_actor.scheduling.policies.base import Action, ContinuePrefill, Decode, RoundRobin, StartPrefill, UnitState
from pdmux_actor.scheduling.policies.decode_lanes import KeptDivision, fill_lanes, may_add_decode
from pdmux_actor.scheduling.policies.forecast import (
    DecodeCycle,
    decode_cycle_s,
    head_sequence,
    prefill_shapes,
    tightest_tbt_s,
    whole_prefill_s,
)
from pdmux_actor.scheduling.policies.prefill_slice import (
    layers_per_slice,
    layers_within,
    preempting_model,
    prompts_worth_batching,
)
from pdmux_actor.scheduling.policies.request_delays import PrefillLoad
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import Precedence, SequenceStatus, TokenSequence
from profiler.latency import ChunkShape


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slice:
    """A prefill slice that could start now."""

    action: StartPrefill | ContinuePrefill
    shapes: Sequence[ChunkShape]


class SideBySide:
    """Re-decides at every decode end and at every prefill slice end; neither lane waits for the other.

    With `paced` prompts of all models go by their serving order, are only batched where that makes them faster
    (prefill_slice.py), and slices are no longer than one and a half decode steps.
    """

    def __init__(self, *, paced: bool = False) -> None:
        self._paced = paced
        self._load = PrefillLoad()
        self._prefill_turn = RoundRobin()
        self._decode_turn = RoundRobin()
        self._division = KeptDivision()
        self._lane_turn = RoundRobin()  # for a device that cannot be shared

    def next_prefill(self, state: UnitState) -> str | None:
        """The model of the batch under way, else the next in turn: in serving order, those whose prompt is next due."""
        if state.batch is not None:
            return state.batch.model
        models = state.prefillable_models()
        return self._prefill_turn.peek(next_due(state, models) if self._paced else models)

    @property
    def load(self) -> float:
        """Returns the load of the prefill lane, as request_delays.py defines it."""
        return self._load.share

    def note_no_prefill(self, now_s: float) -> None:
        """No prompt is under way or waits, but for memory."""
        self._load.note_empty(now_s)

    def begin_prefill(self, state: UnitState, model: str, shapes: Sequence[ChunkShape], sms: int, now_s: float) -> None:
        """A batch of these prompts starts: the next one is another model's, if any waits there."""
        self._prefill_turn.take((model,))
        if self._paced:
            taken_s = whole_prefill_s(state, model, shapes, sms)
            whole_device_s = whole_prefill_s(state, model, shapes, state.total_sms, learned_on=sms)
            self._load.note_start(whole_device_s=whole_device_s, taken_s=taken_s, now_s=now_s)

    def pass_decode_turn(self, model: str) -> None:
        self._decode_turn.take((model,))

    def act(self, state: UnitState, prefilling: str | None, now_s: float) -> Sequence[Action]:
        """`prefilling` is from `next_prefill`."""
        decoding = state.decoding()
        if prefilling is None:
            return self.decode(state, decoding, state.total_sms - state.prefill_lane.sms, now_s)
        if not decoding:
            # Nothing can start decoding but this very prefill. Slices of one TBT keep it open to preemption and aborts.
            if not state.idle:
                return ()
            slice_s = state.settings.solo_slice_s
            return self._start(state, self._next_slice(state, prefilling, state.total_sms, slice_s, now_s), now_s)
        share = share_beside(state, prefilling, decoding)
        if share is None:
            return self.alternate(state, prefilling, decoding, now_s)
        return self.both(state, prefilling, decoding, share, now_s)

    def decode(
        self, state: UnitState, decoding: Sequence[ModelQueue], sms: int, now_s: float, *, steps: int = 1
    ) -> Sequence[Action]:
        """A decode launch of the model whose turn it is, on `sms` SMs, if the lane is idle; or, where the models' steps
        are faster at once, what is missing of them.
        """
        if not may_add_decode(state) or sms <= 0 or _waits_for_merge(state):
            return ()
        if state.settings.decode_lanes > 1 and (len(decoding) > 1 or state.decode_lane.busy):
            division = self._division.of(state, decoding, sms)
            return fill_lanes(state, self._decode_turn, division, share_sms=sms, steps=steps)
        model = self._decode_turn.take(q.model for q in decoding)
        return () if model is None else (Decode(model, sms, steps),)

    def both(
        self, state: UnitState, prefilling: str, decoding: Sequence[ModelQueue], share: int, now_s: float
    ) -> Sequence[Action]:
        busy = state.decode_lane.busy
        held_sms = state.decode_lane.sms
        decode_sms = min(share, state.total_sms - state.prefill_lane.sms)
        if busy and not may_add_decode(state):
            decode_sms = held_sms
        # A slice that starts beside a decode step leaves what the next step needs: the lanes hardly ever end together,
        # and decode could otherwise never have more than its first share of a busy spell, however its batch grows.
        prefill_sms = state.total_sms - (max(held_sms, share) if busy else decode_sms)
        if prefill_sms <= 0 or state.prefill_lane.busy:
            return self.decode(state, decoding, decode_sms, now_s)
        decode_s = decode_cycle_s(state, decoding, decode_sms, beside=prefill_shapes(state, prefilling))
        slice_s = decode_s
        if self._paced and decode_sms > share:  # on what a step leaves it that had more than its share: until that ends
            slice_s = min(decode_s, max(0.0, state.decode_lane.ends_s - now_s))
        planned = self._next_slice(state, prefilling, prefill_sms, slice_s, now_s)
        return (*self.decode(state, decoding, decode_sms, now_s), *self._start(state, planned, now_s))

    def alternate(
        self, state: UnitState, prefilling: str, decoding: Sequence[ModelQueue], now_s: float
    ) -> Sequence[Action]:
        """A single SM cannot be shared in space, so the lanes take turns."""
        if not state.idle:
            return ()
        if self._lane_turn.take(("decode", "prefill")) == "decode":
            return self.decode(state, decoding, state.total_sms, now_s)
        decode_s = decode_cycle_s(state, decoding, state.total_sms)
        return self._start(state, self._next_slice(state, prefilling, state.total_sms, decode_s, now_s), now_s)

    def _next_slice(self, state: UnitState, model: str, sms: int, slice_s: float, now_s: float) -> _Slice:
        """N_PL layers: a slice of about `slice_s`. Of an urgent prompt instead, if it may preempt the batch."""
        urgent = preempting_model(state, now_s, sms)
        batch = None if urgent is not None else state.batch
        model = urgent if urgent is not None else model
        queue = state.queues[model]
        num_layers = queue.info.spec.num_layers
        prompts = prompts_worth_batching(state, model, sms) if self._paced and batch is None else None
        shapes = batch.shapes if batch is not None else _next_shapes(state, model)[:prompts]
        whole_s = whole_prefill_s(state, model, shapes, sms)
        left = num_layers if batch is None else batch.layers_left
        layers = left
        if state.settings.layer_slicing:
            in_slice = layers_within if self._paced else layers_per_slice
            layers = min(left, in_slice(slice_s, whole_s, num_layers))
        starts = StartPrefill(model, layers, sms, max_prompts=prompts)
        return _Slice(action=starts if batch is None else ContinuePrefill(layers, sms), shapes=shapes)

    def _start(self, state: UnitState, planned: _Slice, now_s: float) -> Sequence[Action]:
        if isinstance(planned.action, StartPrefill):
            self.begin_prefill(state, planned.action.model, planned.shapes, planned.action.sms, now_s)
        return (planned.action,)


def share_beside(state: UnitState, prefilling: str, decoding: Sequence[ModelQueue]) -> int | None:
    """The least share on which decode meets its tightest target at worst (MuxWise §3.4.1)."""
    cycle = DecodeCycle(state, decoding, beside=prefill_shapes(state, prefilling))
    return least_decode_share(state.device, cycle.seconds, tightest_tbt_s(decoding))


def next_due(state: UnitState, models: Sequence[str]) -> Sequence[str]:
    """Returns, of models whose heads are in serving order, those whose head is the very next."""
    if len(models) < 2:
        return models
    heads = {model: _place(head_sequence(state.queues[model])) for model in models}
    first = min(heads.values())
    return [model for model in models if heads[model] == first]


def _place(head: TokenSequence) -> tuple[int, float]:
    """Those that are late take turns."""
    if head.status is not SequenceStatus.WAITING or head.precedence is not Precedence.IN_TIME:
        return (head.precedence, 0.0)
    return (head.precedence, head.first_token_due_s)


def _next_shapes(state: UnitState, model: str) -> Sequence[ChunkShape]:
    return preview_chunks(state.queues[model], state.settings, state.settings.max_batch_tokens, whole_prompts=True)


def _waits_for_merge(state: UnitState) -> bool:
    """Without query-based synchronisation decode waits for the end of a prefill, to merge its sequences (§3.2.3)."""
    ending = state.batch is not None and state.batch.in_flight and state.batch.on_last_slice
    return ending and not state.settings.query_sync
