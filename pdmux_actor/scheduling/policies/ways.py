"""The ways in which a unit can take its next prompt, and which of them serves most requests.

A way is a decode share beside the prompt, or a fused step. The best is the one with the largest value

    V = min(1, U / rho) (c + (1 - c) F)

where rho is the utilisation of the unit by prompts when all are taken in this way (balance.py), U the utilisation up to
which first tokens can be in time, and F the share of running sequences whose TBT target admits the gaps that they have
meanwhile (tbt_target.py): a request that has its first token in time and late gaps counts c of one that is served within
both targets. Of ways with equal value those that give the next prompt its first token in time are better, and of these
the one that delays requests least in all (balance.py).

MuxWise's rule, the least share that meets the tightest target (§3.4.1), is what comes out where prefill keeps up beside
it and needs all it can have. A target that nobody can meet, or only on so many SMs that prefill cannot keep up, decides
nothing.
"""

from collections.abc import Iterable, Sequence

import msgspec

from pdmux_actor.scheduling.partition import decode_shares, least_share
from pdmux_actor.scheduling.policies.balance import Delays
from pdmux_actor.scheduling.policies.base import UnitState
from pdmux_actor.scheduling.policies.forecast import DecodeCycle, head_sequence, prefill_shapes, whole_prefill_s
from pdmux_actor.scheduling.policies.fusing import fused_steps
from pdmux_actor.scheduling.policies.tbt_target import RunningTargets
from pdmux_actor.scheduling.queues import ModelQueue

_BEARABLE_UTILISATION = 0.9
_LATE_GAPS_COUNT = 0.5
_FUSED_GAP_MARGIN = 0.9  # a fused step is predicted by its mean, decode beside a prompt by its worst case
_CHOICES = 8  # shares; the delay is flat around its minimum
_EQUAL = 1e-6


class Way(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`least_share` is the least decode share of the same value; `fused_tokens` None: both lanes side by side."""

    decode_sms: int
    least_share: int
    fused_tokens: int | None = None


class _Rated(msgspec.Struct, frozen=True, gc=False):
    value: float
    in_time: bool
    delay_s: float
    decode_sms: int
    fused_tokens: int | None

    @property
    def rank(self) -> tuple[float, bool, float]:
        return (-round(self.value, 6), not self.in_time, self.delay_s)


class Ways:
    """Of one decision: `prefilling` is the model whose prompt is under way or next, `load` the prefill lane's."""

    def __init__(
        self, state: UnitState, prefilling: str, decoding: Sequence[ModelQueue], load: float, now_s: float
    ) -> None:
        self._state, self._prefilling, self._decoding, self._now_s = state, prefilling, decoding, now_s
        self._load = load
        self._shapes = prefill_shapes(state, prefilling)
        self._targets = RunningTargets(decoding)
        self._worst_s = DecodeCycle(state, decoding, beside=self._shapes).seconds
        self._whole_s = whole_prefill_s(state, prefilling, self._shapes, state.total_sms)

    def best(self, *, may_fuse: bool) -> Way | None:
        """None when nothing can be fused and the device cannot be shared (a single SM)."""
        shares = self._shares()
        delays = Delays(self._state, self._prefilling, self._shapes, self._decoding, self._load)
        rated = [self._beside(share, delays) for share in shares]
        least = None
        if rated:
            top = max([way.value for way in rated])
            least = min([way.decode_sms for way in rated if way.value >= top - _EQUAL])
        if may_fuse:
            rated += self._fused(delays)
        if not rated:
            return None
        way = min(rated, key=lambda way: way.rank)
        return Way(
            decode_sms=way.decode_sms,
            least_share=way.decode_sms if least is None else least,
            fused_tokens=way.fused_tokens,
        )

    def _shares(self) -> Sequence[int]:
        """The least for every target, the least of all, and a few across the device."""
        possible = decode_shares(self._state.device)
        if not possible:
            return ()
        step = max(1, -(-len(possible) // _CHOICES))
        for_targets = [least_share(possible, self._worst_s, tbt_s) for tbt_s in self._targets.weightiest()]
        return sorted({possible[0], *possible[step - 1 :: step], *[share for share in for_targets if share]})

    def _beside(self, share: int, delays: Delays) -> _Rated:
        prompt_s = whole_prefill_s(self._state, self._prefilling, self._shapes, self._state.total_sms - share)
        return _Rated(
            self._value(self._worst_s(share), self._load * prompt_s / self._whole_s),
            self._is_in_time(prompt_s),
            delays.beside_s(share),
            share,
            None,
        )

    def _fused(self, delays: Delays) -> Iterable[_Rated]:
        state = self._state
        for step in fused_steps(state, self._prefilling, self._now_s):
            alone_s = whole_prefill_s(state, self._prefilling, step.shapes, state.total_sms)
            yield _Rated(
                self._value(step.gap_s / _FUSED_GAP_MARGIN, self._load * step.step_s / alone_s),
                self._is_in_time(step.step_s / min(1.0, step.prompts)),
                delays.fused_s(step),
                state.total_sms,
                step.tokens,
            )

    def _value(self, gap_s: float, utilisation: float) -> float:
        """V."""
        served = 1.0 if utilisation <= _BEARABLE_UTILISATION else _BEARABLE_UTILISATION / utilisation
        return served * (_LATE_GAPS_COUNT + (1 - _LATE_GAPS_COUNT) * self._targets.share_met(gap_s))

    def _is_in_time(self, prompt_s: float) -> bool:
        """A prompt that is late already has no more to lose."""
        batch = self._state.batch
        if batch is None:
            due_s = head_sequence(self._state.queues[self._prefilling]).first_token_due_s
        else:
            prompt_s *= batch.layers_left / batch.num_layers
            due_s = min([chunk.sequence.first_token_due_s for chunk in batch.chunks])
        return self._now_s + prompt_s <= due_s or due_s <= self._now_s
