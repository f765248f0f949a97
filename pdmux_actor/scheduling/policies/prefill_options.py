"""The ways in which a unit can take its next prompt, and which of them serves most requests.

A way is a decode share beside the prompt, or a fused step. The best is the one with the largest value

    V = min(1, U / rho) (c + (1 - c) F),    rho = max(rho_P, rho_D)

where rho_P is the utilisation of the prefill lane when all prompts are taken in this way, rho_D that of the places for
sequences when all decode at this pace (request_delays.py), U the utilisation up to which first tokens can be in time,
and F the share of running sequences whose TBT target admits the gaps that they have meanwhile (forecast.py). A
request that has its first token in time and late gaps counts c of one that is served within both targets. Of ways with
equal value that one is best with which most of the prompts that wait have their first token in time, and of these the
one that delays requests least in all.

MuxWise's rule, the least share that meets the tightest target (section 3.4.1), is what comes out where prefill keeps up
beside it and needs all it can have; DuetServe's, to aggregate where the target admits it, where that delays least. A
target that nobody can meet, or only on so many SMs that prefill cannot keep up, decides nothing.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pdmux_actor.scheduling.batching import PrefillBatch
from pdmux_actor.scheduling.decode_outlook import steps_s
from pdmux_actor.scheduling.launch import decode_shares, least_share
from pdmux_actor.scheduling.policies.base import UnitState
from pdmux_actor.scheduling.policies.decode_lanes import DecodeBatches, is_near
from pdmux_actor.scheduling.policies.forecast import (
    SAFE_SHARE,
    DecodeCycle,
    RunningTargets,
    next_prompts,
    prefill_outlook,
    prefill_shapes,
    whole_prefill_s,
)
from pdmux_actor.scheduling.policies.fusing import fused_steps
from pdmux_actor.scheduling.policies.request_delays import Delays, LaneLoad
from pdmux_actor.scheduling.prediction import STEADY_SPREAD
from pdmux_actor.scheduling.queues import ModelQueue

BEARABLE_UTILISATION = 0.9
_LATE_GAPS_COUNT = 0.5
_CHOICES = 8  # shares; the delay is flat around its minimum


def request_value(served: float, met: float) -> float:
    """V: `served` is the share of requests with their first token in time, `met` is F."""
    return served * (_LATE_GAPS_COUNT + (1 - _LATE_GAPS_COUNT) * met)


class PrefillOption(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`gap_s` is that of running sequences meanwhile, `least_gap_s` the least of all ways with which prefill keeps up,
    or of all where it cannot; `fused_tokens` None: both lanes side by side.
    """

    decode_sms: int
    gap_s: float
    least_gap_s: float
    fused_tokens: int | None = None


class _Rated(msgspec.Struct, frozen=True, gc=False):
    value: float
    in_time: int
    delay_s: float
    gap_s: float
    decode_sms: int
    fused_tokens: int | None
    keeps_up: bool

    @property
    def rank(self) -> tuple[float, int, float]:
        return (-round(self.value, 6), -self.in_time, self.delay_s)


def worst_by_share(state: UnitState, cycle: DecodeCycle) -> Mapping[int, float]:
    """Worst case of a decode cycle on each share, ascending.

    The more SMs decode has, the fewer contend with it: what was learned on a smaller share bounds the slowdown on a
    larger one that has not been tried.
    """
    worst_s: dict[int, float] = {}
    slowdown = float("inf")
    for share, solo_s, beside_s in cycle.alone_and_worst_s(decode_shares(state.device)):
        slowdown = min(slowdown, beside_s / solo_s)
        worst_s[share] = slowdown * solo_s
    return worst_s


class PrefillOptions:
    """Lists the options of one decision: `prefilling` is the model whose prompt is under way or next."""

    def __init__(
        self, state: UnitState, prefilling: str, decoding: Sequence[ModelQueue], load: LaneLoad, now_s: float
    ) -> None:
        self._state, self._prefilling, self._decoding, self._now_s = state, prefilling, decoding, now_s
        self._load = load
        self._shapes = prefill_shapes(state, prefilling)
        self._targets = RunningTargets(decoding)
        self._cycle = DecodeCycle(state, decoding, beside=self._shapes)
        self._worst_s = worst_by_share(state, self._cycle)
        self._prompts = next_prompts(state, now_s)
        self._prompt_s = prefill_outlook(state, prefilling, self._shapes).seconds
        self._whole_s = self._prompt_s(state.total_sms)

    def best(self, *, may_fuse: bool) -> PrefillOption | None:
        """None when nothing can be fused and the device cannot be shared (a single SM)."""
        shares = self._shares()
        delays = Delays(
            self._state,
            self._prefilling,
            self._decoding,
            self._load.prefill,
            cycle=self._cycle,
            prompt_s=self._prompt_s,
        )
        rated = [self._beside(share, delays) for share in shares]
        if may_fuse:
            rated += self._fused(delays)
        if not rated:
            return None
        way = min(rated, key=lambda way: way.rank)
        least_gap_s = min([o.gap_s for o in rated if o.keeps_up] or [o.gap_s for o in rated])
        return PrefillOption(
            decode_sms=way.decode_sms, gap_s=way.gap_s, least_gap_s=least_gap_s, fused_tokens=way.fused_tokens
        )

    def _shares(self) -> Sequence[int]:
        """The least for every target, the least of all, and a few across the device."""
        possible = list(self._worst_s)
        if not possible:
            return ()
        step = max(1, -(-len(possible) // _CHOICES))
        for_targets = [
            least_share(possible, self._worst_s.__getitem__, SAFE_SHARE * tbt_s) for tbt_s in self._targets.weightiest()
        ]
        return sorted({possible[0], *possible[step - 1 :: step], *[share for share in for_targets if share]})

    def _beside(self, share: int, delays: Delays) -> _Rated:
        stretch = self._prompt_s(self._state.total_sms - share) / self._whole_s
        return _Rated(
            self._value(self._worst_s[share], stretch, self._targets.share_met(self._worst_s[share])),
            self._in_time(stretch),
            delays.beside_s(share),
            self._worst_s[share],
            share,
            None,
            self._keeps_up(stretch),
        )

    def _fused(self, delays: Delays) -> Iterable[_Rated]:
        state = self._state
        # Decode beside a prompt is predicted by its worst case, a fused step by its mean: half of them take longer. One
        # that is within a target as a rule is better than what misses it always, though at worst both may be late.
        spread = state.predictor.mixed_spread(self._prefilling)
        bearable_s = SAFE_SHARE * min(self._targets.weightiest()) / spread
        for step in fused_steps(state, self._prefilling, self._now_s, bearable_s):
            stretch = step.step_s / whole_prefill_s(state, self._prefilling, step.shapes, state.total_sms)
            met = (
                self._targets.share_met(step.gap_s * STEADY_SPREAD) + self._targets.share_met(step.gap_s * spread)
            ) / 2
            yield _Rated(
                self._value(step.gap_s * STEADY_SPREAD, stretch, met),
                self._in_time(stretch),
                delays.fused_s(step),
                step.gap_s,
                state.total_sms,
                step.tokens,
                self._keeps_up(stretch),
            )

    def _value(self, gap_s: float, stretch: float, met: float) -> float:
        """V: prompts take `stretch` times as long as on the whole device; `met` is F."""
        utilisation = max(self._load.prefill * stretch, self._load.decode_per_s * gap_s)
        served = 1.0 if utilisation <= BEARABLE_UTILISATION else BEARABLE_UTILISATION / utilisation
        return request_value(served, met)

    def _keeps_up(self, stretch: float) -> bool:
        return self._load.prefill * stretch <= BEARABLE_UTILISATION

    def _in_time(self, stretch: float) -> int:
        """Prompts that have their first token in time, one after the other, `stretch` times as slow as at best."""
        in_time, end_s = 0, self._now_s
        for work_s, due_s in self._prompts:
            end_s += stretch * work_s
            in_time += end_s <= due_s
        return in_time


class WayOfBatch(msgspec.Struct, kw_only=True, gc=False):
    """`way` in which the prefill batch `batch` is taken beside `decoding`, while `num_waiting` prompts waited. Steps of
    all models were to take `steps_s` on its share beside the batch, at worst.
    """

    way: PrefillOption
    batch: PrefillBatch
    batches: DecodeBatches
    num_waiting: int
    steps_s: float

    @classmethod
    def of(cls, way: PrefillOption, state: UnitState, decoding: Sequence[ModelQueue]) -> "WayOfBatch | None":
        batch = state.batch
        if batch is None:
            return None
        return cls(
            way=way,
            batch=batch,
            batches=DecodeBatches.of(decoding),
            num_waiting=state.num_prompts,
            steps_s=steps_s(state.decode_outlooks(decoding), way.decode_sms, batch.shapes),
        )

    def holds(self, state: UnitState, decoding: Sequence[ModelQueue]) -> bool:
        if self.batch is not state.batch or self.num_waiting != state.num_prompts or not self.batches.are_of(decoding):
            return False
        outlooks = state.decode_outlooks(decoding)
        return is_near(steps_s(outlooks, self.way.decode_sms, self.batch.shapes), self.steps_s)
