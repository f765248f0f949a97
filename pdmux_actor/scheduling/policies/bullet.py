"""Bullet (arXiv:2504.19516): the border between prefill and decode moves with each launch, by predicted progress.

Prompts run in slices of layers. Whenever a lane is free, latencies are estimated from what launches have taken so far,
and compared with the targets, for decode on y SMs beside a prompt on x = all - y:

    TBT is met where T_d(y) <= target,    TTFT where now + T_P(x) <= due

The border stays where both are met; else it moves as little as makes both so. If that cannot be, decode has the least
share that meets its own, and while the sequences' mean time per output token leaves slack,

    slack = min over sequences of (first token + (n + 1) target) - now - T_d(all)    (n tokens since the first)

decode pauses for as many layers as fit into it, if with all SMs the prompt is in time. A phase without work leaves all
SMs to the other.

Assumed, where the published text was not at hand: the first split is `static_decode_share`, slices last about a decode
step, the prompt that is judged is the one under way or next, and the contention of the lanes is the guard's worst case
(MuxWise §3.3.2), for which the paper has fitted factors. The paper reorders prompts by slack; these come in the order
of their arrival. It serves one model; several take turns.
"""

import math
from collections.abc import Callable, Sequence

from pdmux_actor.scheduling.launch import decode_shares, fixed_decode_share
from pdmux_actor.scheduling.policies.base import Action, ContinuePrefill, Decode, Mixed, StartPrefill, UnitState
from pdmux_actor.scheduling.policies.entry import PolicyEntry
from pdmux_actor.scheduling.policies.forecast import (
    DecodeCycle,
    head_sequence,
    prefill_shapes,
    tightest_tbt_s,
    whole_prefill_s,
)
from pdmux_actor.scheduling.policies.prefill_first import PrefillFirst
from pdmux_actor.scheduling.policies.side_by_side import layers_per_slice
from pdmux_actor.scheduling.policies.whole_prefills import SplitLanes
from pdmux_actor.scheduling.sequence import TokenSequence


class Bullet:
    target_aware = False

    def __init__(self) -> None:
        self._lanes = SplitLanes()
        self._undivided = PrefillFirst()
        self._share: int | None = None

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        share = self._share or fixed_decode_share(state.device, state.settings.static_decode_share)
        if share is None:
            return self._undivided.choose(state, now_s)
        prefilling, decodes = self._lanes.next_prefill(state), bool(state.decoding())
        if prefilling is None or not decodes:
            return self._lanes.act(state, state.total_sms if decodes else 0)
        progress = _Progress(state, prefilling, now_s)
        share = moved_share(decode_shares(state.device), share, progress.meets_tbt, progress.meets_ttft)
        self._share = share
        is_late = not progress.meets_ttft(share)
        if state.idle and is_late and progress.meets_ttft(0) and (layers := progress.layers_in_slack()):
            return self._in_slices(state, 0, layers)
        return self._in_slices(state, share, progress.layers_beside(share))

    def _in_slices(self, state: UnitState, share: int, layers: int) -> Sequence[Action]:
        return [_sliced(action, layers) for action in self._lanes.act(state, share)]


POLICY = PolicyEntry(
    name="bullet",
    rule="a partition that moves with each launch, as little as makes predictions that measurements correct meet both "
    "targets; where none does, decode meets its own, or pauses while its mean gap leaves slack",
    source="Bullet",
    make=Bullet,
)


def moved_share(
    shares: Sequence[int], decode_sms: int, meets_tbt: Callable[[int], bool], meets_ttft: Callable[[int], bool]
) -> int:
    """The decode share nearest to the present one on which both targets are met. Where there is none, the least that
    meets TBT, or the largest.
    """
    for share in sorted(shares, key=lambda share: (abs(share - decode_sms), share)):
        if meets_tbt(share) and meets_ttft(share):
            return share
    return next((share for share in shares if meets_tbt(share)), max(shares))


class _Progress:
    """How the prompt that is under way or next, and the running sequences, stand against their targets."""

    def __init__(self, state: UnitState, prefilling: str, now_s: float) -> None:
        self._state, self._now_s = state, now_s
        self._shapes, self._model = prefill_shapes(state, prefilling), prefilling
        self._cycle = DecodeCycle(state, state.decoding(), beside=self._shapes, in_turn=True)
        self._target_s = tightest_tbt_s(state.decoding())
        queue, batch = state.queues[prefilling], state.batch
        self._num_layers = queue.info.spec.num_layers
        self._layers_left = self._num_layers if batch is None else batch.layers_left
        self._due_s = head_sequence(queue).first_token_due_s if batch is None else batch.first_token_due_s

    def meets_tbt(self, decode_sms: int) -> bool:
        seconds = self._cycle.seconds
        return seconds(decode_sms) <= self._target_s

    def meets_ttft(self, decode_sms: int) -> bool:
        left_s = self._prompt_s(decode_sms) * self._layers_left / self._num_layers
        return self._now_s + left_s <= self._due_s

    def layers_beside(self, decode_sms: int) -> int:
        seconds = self._cycle.seconds
        return layers_per_slice(seconds(decode_sms), self._prompt_s(decode_sms), self._num_layers)

    def layers_in_slack(self) -> int:
        """Returns how many layers fit on all SMs before a sequence's mean gap would be beyond its target."""
        running = [s for queue in self._state.decoding() for s in queue.running]
        due_s = min([_next_due_s(sequence, self._now_s) for sequence in running])
        alone_s = self._cycle.alone_s
        slack_s = due_s - self._now_s - alone_s(self._state.total_sms)
        if math.isinf(slack_s):
            return self._num_layers
        return max(0, math.floor(slack_s * self._num_layers / self._prompt_s(0)))

    def _prompt_s(self, decode_sms: int) -> float:
        total_sms = self._state.total_sms
        return whole_prefill_s(self._state, self._model, self._shapes, total_sms - decode_sms, learned_on=total_sms)


def _next_due_s(sequence: TokenSequence, now_s: float) -> float:
    """When a sequence must have its next token for its mean gap to be its target."""
    if sequence.first_token_s is None:  # it is held back, or came from another unit
        return now_s + sequence.tbt_s
    gaps = sequence.num_output_tokens - len(sequence.request.output_token_ids)  # with the next token's
    return sequence.first_token_s + gaps * sequence.tbt_s


def _sliced(action: Action, layers: int) -> Action:
    match action:
        case StartPrefill(model=model, layers=left, sms=sms):
            return StartPrefill(model, min(layers, left), sms)
        case ContinuePrefill(layers=left, sms=sms):
            return ContinuePrefill(min(layers, left), sms)
        case Decode() | Mixed():
            return action
