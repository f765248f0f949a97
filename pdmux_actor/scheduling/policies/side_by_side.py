"""Prefill and decode at once, on shares that meet the TBT target (MuxWise §3.4). What `mux` and `muxwise` share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pdmux_actor.scheduling.batching import preview_chunks
from pdmux_actor.scheduling.launch import least_decode_share
from pdmux_actor.scheduling.policies.base import Action, ContinuePrefill, Decode, RoundRobin, StartPrefill, UnitState
from pdmux_actor.scheduling.policies.decode_lanes import KeptDivision, fill_lanes, may_add_decode
from pdmux_actor.scheduling.policies.forecast import (
    DecodeCycle,
    batch_left_s,
    decode_cycle_s,
    head_sequence,
    prefill_shapes,
    tightest_tbt_s,
    whole_prefill_s,
)
from pdmux_actor.scheduling.policies.request_delays import PrefillLoad
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import Precedence, SequenceStatus, TokenSequence
from profiler.latency import ChunkShape

_LONGEST_SLICE_STEPS = 1.5
# A prompt joins a batch that saves at least this share of the prompt's own time. Where prefill is compute-bound a batch
# saves nothing: its first prompts only wait for its last.
_LEAST_SAVING = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slice:
    """A prefill slice that could start now."""

    action: StartPrefill | ContinuePrefill
    shapes: Sequence[ChunkShape]


class SideBySide:
    """Re-decides at every decode end and at every prefill slice end; neither lane waits for the other.

    With `paced` prompts of all models go by their serving order, are only batched where that makes them faster
    (`prompts_worth_batching`), and slices are no longer than one and a half decode steps.
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

    def has_decode_turn(self, model: str, decoding: Sequence[ModelQueue]) -> bool:
        """Returns whether the next decode step in turn is the model's."""
        return self._decode_turn.peek(q.model for q in decoding) == model

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
        any_prompt = state.settings.any_prompt_preempts and not self._paced
        urgent = preempting_prompt(state, now_s, sms, any_prompt=any_prompt)
        batch = None if urgent is not None else state.batch
        model = urgent.model if urgent is not None else model
        queue = state.queues[model]
        num_layers = queue.info.spec.num_layers
        prompts = prompts_worth_batching(state, model, sms) if self._paced and batch is None else None
        if urgent is not None and urgent.sequence is not head_sequence(queue):
            queue.set_precedence(urgent.sequence, Precedence.FIRST)
            state.forget_heads()
            prompts = 1  # those that it overtakes have no place in its batch
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


def layers_per_slice(decode_s: float, prefill_s: float, num_layers: int) -> int:
    """N_PL = ceil(T_d * N_T / T_P), at least 1 and at most N_T (MuxWise §3.4.1).

    The slice then lasts about as long as the decode work beside it, so neither lane waits for the other.

    >>> layers_per_slice(decode_s=0.02, prefill_s=0.4, num_layers=32)
    2
    >>> layers_per_slice(decode_s=1.0, prefill_s=0.4, num_layers=32)
    32
    """
    if prefill_s <= 0:
        return num_layers
    return max(1, min(num_layers, math.ceil(decode_s * num_layers / prefill_s)))


def layers_within(decode_s: float, prefill_s: float, num_layers: int) -> int:
    """N_PL, but no more layers than take one and a half times `decode_s`, unless that is less than one.

    Rounding up makes a slice of two layers that take 0.9 decode steps each: nothing else can start meanwhile.

    >>> layers_within(decode_s=1.0, prefill_s=28.8, num_layers=32), layers_per_slice(1.0, 28.8, 32)
    (1, 2)
    >>> layers_within(decode_s=1.0, prefill_s=13.0, num_layers=32)
    3
    """
    longest = num_layers if prefill_s <= 0 else int(_LONGEST_SLICE_STEPS * decode_s * num_layers / prefill_s)
    return max(1, min(longest, layers_per_slice(decode_s, prefill_s, num_layers)))


class UrgentPrompt(NamedTuple):
    model: str
    sequence: TokenSequence


def preempting_prompt(state: UnitState, now_s: float, sms: int, *, any_prompt: bool = False) -> UrgentPrompt | None:
    """A model's next prompt that would miss its TTFT behind the batch, makes it before and lets the batch make its own.

    A batch that will not make its own in any case has nothing to lose, and one that costs more requests their first
    token than it has itself goes behind them; one that gives way does so to any prompt. Not recursive: a batch that has
    preempted is not preempted itself. Of several such prompts the most urgent. `any_prompt`: not only those that are
    next, but all that wait (MuxWise §3.4.2 speaks of a batch that arrives); of so many there is always one, so a batch
    that has made way and is late does not do so again.
    """
    batch = state.batch
    if not state.settings.preempt_prefill or batch is None or state.suspended is not None or batch.in_flight:
        return None
    if batch.is_kept:
        return None
    remaining_s = batch_left_s(state, sms)
    batch_slack_s = batch.first_token_due_s - now_s
    keeps_its_own = remaining_s <= batch_slack_s and not batch.is_put_back
    if any_prompt and batch.was_preempted and not keeps_its_own and not batch.gives_way:
        return None
    chosen, chosen_slack_s = None, float("inf")
    for queue, prompt in _all_prompts(state) if any_prompt else _next_prompts(state):
        if prompt.gives_way:
            continue
        prefill_s = whole_prefill_s(state, queue.model, [queue.chunk_shape(prompt)], sms)
        slack_s = prompt.first_token_due_s - now_s
        would_miss = remaining_s + prefill_s > slack_s >= prefill_s
        can_make_it = prompt.precedence is Precedence.FIRST or slack_s >= prefill_s
        goes_before = batch.is_put_back and prompt.precedence is not Precedence.LATE and can_make_it
        # What preempts cannot be preempted itself: a long prompt would hold up those for which the batch made way.
        is_bearable = remaining_s + prefill_s <= batch_slack_s if keeps_its_own else 2 * prefill_s <= remaining_s
        may_preempt = batch.gives_way or ((would_miss or goes_before) and is_bearable)
        if may_preempt and slack_s < chosen_slack_s:
            chosen, chosen_slack_s = UrgentPrompt(queue.model, prompt), slack_s
    return chosen


def _next_prompts(state: UnitState) -> list[tuple[ModelQueue, TokenSequence]]:
    queues = [state.queues[model] for model in state.prefillable_models()]
    return [(queue, head_sequence(queue)) for queue in queues]


def _all_prompts(state: UnitState) -> list[tuple[ModelQueue, TokenSequence]]:
    """Those that KV admits now; of a model with a prompt that has been begun that one alone, which goes on first."""
    prompts = [pair for pair in _next_prompts(state) if pair[1].status is not SequenceStatus.WAITING]
    for queue in state.queues.values():
        if queue.partial or queue.removing:
            continue
        places = queue.places(state.settings.max_running_sequences)
        prompts += [
            (queue, prompt)
            for prompt in queue.waiting
            if queue.admits(prompt, max_resident=places, watermark=state.settings.kv_watermark)
        ]
    return prompts


def prompts_worth_batching(state: UnitState, model: str, sms: int) -> int:
    """Returns how many of the next prompts gain by being one batch, at least 1."""
    shapes = preview_chunks(state.queues[model], state.settings, state.settings.max_batch_tokens, whole_prompts=True)
    batch_s = whole_prefill_s(state, model, shapes[:1], sms)
    for count in range(1, len(shapes)):
        longer_s = whole_prefill_s(state, model, shapes[: count + 1], sms)
        own_s = whole_prefill_s(state, model, shapes[count : count + 1], sms)
        if longer_s - batch_s > (1 - _LEAST_SAVING) * own_s:
            return count
        batch_s = longer_s
    return max(1, len(shapes))
