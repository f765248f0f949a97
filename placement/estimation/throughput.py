"""Estimates how much load a unit carries within its SLOs: MuxServe's throughput estimate (Eq. 3) for continuous
batching.

Eq. 3 reads tpt_m = min(b_m / (sum_i t_p^i + t_d^m l_o^m), W_m): a batch of m waits for the prefills of all models,
then takes l_o decode steps. Here batches are continuous. With x_m requests/s, output length o_m, prefill time p_m, and
decode steps of alpha_m + beta_m b_m:

    rounds      T = A / (1 - X)    A = sum alpha_m a_m, X = loss sum x_m p_m + sum x_m o_m beta_m
    sequences   b_m = x_m o_m T    (Little)

Prefills run one after the other; decode goes on beside them and loses `loss` of its progress (1: none at all goes on).
One round is a decode step of every model that has sequences; a_m is the chance that m has any. The prefill lane's mean
wait is Kingman's, with the variation c_m of the gaps between each model's requests: sum x_m p_m^2 c_m^2 / 2(1 - rho)
(prompts of a model take equally long; the variances of what models bring add up). Every limit then is linear in a
common factor lambda on all x, so the largest lambda has a closed form, and units are evaluated by the thousand. Sums
over the models of a unit are all that it needs, so adding a model is adding a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Columns of sums over the models of a unit.
BYTES, FLOOR, MODELS, LOAD, PREFILL, PREFILL_SQUARE, DECODE, KV, ROUND, ROUND_VARIANCE, DECODE_OWN, KV_OWN = range(12)
NUM_SUMS = 12
# Further columns of what a model brings by itself.
_OUTPUT_TOKENS, _ROUND_RATE, _WHOLE_RATE, _EXCESS_SCV = range(NUM_SUMS, NUM_SUMS + 4)
NUM_OWN = NUM_SUMS + 4
# Columns of minima over the models of a unit; SLACK has one per way of sharing, so it comes last.
TBT, BATCH, STEP, SLACK = range(4)  # BATCH: -(output tokens/s), STEP: -(seconds), as minima

LARGEST_FACTOR = 1e6
_LITTLE, _TOO_MUCH = 1e-15, 1e12
# 99 % of waits of an M/G/1 queue are below ln(100) of its mean wait; 99 % of a normal below 2.33 sigma.
_TAIL_OF_WAITS = float(np.log(100))
_TAIL_OF_ROUNDS = 2.33
_SELDOM_PER_S = 1e-9
_ROUNDS_LENGTH = 4.0  # a round is taken to be so many times a model's own step, for its chance to be active


class Limit(StrEnum):
    """Names what keeps a unit from carrying more."""

    TBT = "TBT"
    KV = "KV blocks"
    BATCH = "running sequences"
    TTFT = "TTFT"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KindCosts:
    """Holds the costs of every model on one kind of unit; arrays over models, `slack_s` [models, ways]. `runs` is False
    where a model cannot run. `pool_blocks`, `memory_bytes`: what the kind offers; of a pool that takes what the models
    leave, a byte of theirs costs `blocks_per_byte` (else 0). `rates_per_s` is a model's whole
    demand, `arrival_scv` the squared coefficient of variation of the gaps between its requests. `own` holds what each
    model brings by itself, in one row: the factors of its sums that its load has no part in, then its minima.
    """

    num_gpus: int
    memory_bytes: float
    pool_blocks: float
    blocks_per_byte: float
    max_running: float
    max_models: float
    runs: npt.NDArray[np.bool_]
    resident_bytes: Floats
    floor_blocks: Floats
    prefill_s: Floats
    decode_s: Floats
    decode_s_per_sequence: Floats
    blocks_per_sequence: Floats
    output_tokens: Floats
    rates_per_s: Floats
    arrival_scv: Floats
    tbt_s: Floats
    slack_s: Floats
    decode_dilation: Floats
    prefill_dilation: Floats
    decode_loss: Floats
    decode_sms: Floats
    own: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        own = np.zeros((len(self.runs), NUM_OWN + SLACK + self.num_ways))
        sums = (
            (BYTES, self.resident_bytes),
            (FLOOR, self.floor_blocks),
            (MODELS, 1.0),
            (LOAD, 1.0),
            (PREFILL, self.prefill_s),
            (PREFILL_SQUARE, self.prefill_s**2),
            (DECODE, self.decode_s_per_sequence),
            (KV, self.blocks_per_sequence),
            (ROUND, self.decode_s),
            (ROUND_VARIANCE, self.decode_s**2),
            (_OUTPUT_TOKENS, self.output_tokens),
            (_ROUND_RATE, -_ROUNDS_LENGTH * self.decode_s),
            (_WHOLE_RATE, np.maximum(self.rates_per_s, _LITTLE)),
            (_EXCESS_SCV, self.arrival_scv - 1.0),
        )
        for column, values in sums:
            own[:, column] = values
        minima = own[:, NUM_OWN:]
        minima[:, TBT], minima[:, STEP], minima[:, SLACK:] = self.tbt_s, -self.decode_s, self.slack_s
        object.__setattr__(self, "own", own)

    @property
    def num_ways(self) -> int:
        return len(self.decode_loss)

    def sums(self, model: int | npt.NDArray[np.intp], rate_per_s: float | Floats) -> Floats:
        """[..., NUM_SUMS] of replicas that get `rate_per_s` requests a second."""
        rate = np.asarray(rate_per_s, dtype=np.float64)
        own = self.own[model]
        tokens_per_s = rate * own[..., _OUTPUT_TOKENS]
        sums: Floats = np.empty((*tokens_per_s.shape, NUM_SUMS))
        sums[...] = own[..., :NUM_SUMS]
        active = -np.expm1(tokens_per_s * own[..., _ROUND_RATE])
        # Routing thins a stream: a share s of one with c^2 has 1 + s (c^2 - 1) (Whitt 1983, QNA Eq. 36).
        scv = 1.0 + np.minimum(1.0, rate / own[..., _WHOLE_RATE]) * own[..., _EXCESS_SCV]
        sums[..., LOAD : PREFILL_SQUARE + 1] *= rate[..., None]
        sums[..., PREFILL_SQUARE] *= scv
        sums[..., DECODE : KV + 1] *= tokens_per_s[..., None]
        # While m has sequences, its own step is part of every round.
        np.multiply(sums[..., DECODE : KV + 1], own[..., ROUND, None], out=sums[..., DECODE_OWN : KV_OWN + 1])
        sums[..., ROUND : ROUND_VARIANCE + 1] *= active[..., None]
        sums[..., ROUND_VARIANCE : KV_OWN + 1] *= (1 - active)[..., None]
        return sums

    def minima(self, model: int | npt.NDArray[np.intp], rate_per_s: float | Floats) -> Floats:
        """[..., SLACK + ways]"""
        rate = np.asarray(rate_per_s, dtype=np.float64)
        own = self.own[model]
        output = -rate * own[..., _OUTPUT_TOKENS]
        minima: Floats = np.empty((*output.shape, SLACK + self.num_ways))
        minima[...] = own[..., NUM_OWN:]
        minima[..., BATCH] = output
        return minima

    def holds(self, sums: Floats) -> npt.NDArray[np.bool_]:
        """Returns whether weights and one mean request of each model fit."""
        fits = (sums[..., BYTES] <= self.memory_bytes) & (sums[..., FLOOR] <= self.pool_beside(sums))
        return np.asarray(fits & (sums[..., MODELS] <= self.max_models))

    def pool_beside(self, sums: Floats) -> Floats:
        """Token blocks of a unit with these models."""
        return np.asarray(self.pool_blocks - self.blocks_per_byte * sums[..., BYTES])

    def factor(self, sums: Floats, minima: Floats) -> Floats:
        """The largest lambda by which the load of units may grow within SLOs; below 1 a unit is overloaded. 0 where a
        model cannot meet its SLO there at any load.
        """
        needs = self._needs(sums, minima)
        lanes = needs.busy + np.maximum(needs.tbt, np.maximum(needs.kv, needs.batch)[..., None])
        return _factor_of(np.maximum(lanes, needs.ttft).min(axis=-1))

    def limits(self, sums: Floats, minima: Floats) -> tuple[int, dict[Limit, float]]:
        """Returns, for one unit, the way of sharing that admits most, and the factor that each limit alone would
        admit.
        """
        needs = self._needs(sums, minima)
        of_limits = needs.of_limits()
        way = int(np.max([*of_limits.values()], axis=0).argmin())
        return way, {limit: float(_factor_of(need[way])) for limit, need in of_limits.items()}

    def least_needs(self) -> Floats:
        """[limits, models, ways]: parts of a unit that one request per second takes by each limit, for a model that
        is alone and seldom asked for. With more load, or beside others, it takes no less.
        """
        models, seldom = np.arange(len(self.runs)), np.full(len(self.runs), _SELDOM_PER_S)
        needs = self._needs(self.sums(models, seldom), self.minima(models, seldom))
        return np.stack([*needs.of_limits().values()]) / _SELDOM_PER_S

    def round_s(self, sums: Floats, minima: Floats, way: int) -> float:
        """The gap between tokens that 99 % of a unit's gaps stay below, while a prefill runs beside; infinite beyond
        what the unit can carry.
        """
        busy = self.decode_loss[way] * sums[PREFILL] + sums[DECODE]
        if busy >= 1:
            return float("inf")
        tail_s = max(sums[ROUND] + _TAIL_OF_ROUNDS * np.sqrt(sums[ROUND_VARIANCE]), -minima[STEP])
        grown_s = (sums[ROUND] * sums[DECODE] + sums[DECODE_OWN]) / (1 - busy)
        return float((tail_s + grown_s) * self.decode_dilation[way])

    def _needs(self, sums: Floats, minima: Floats) -> "_Needs":
        round_s, decode = sums[..., ROUND], sums[..., DECODE]
        tail_s = np.maximum(round_s + _TAIL_OF_ROUNDS * np.sqrt(sums[..., ROUND_VARIANCE]), -minima[..., STEP])
        room_s = minima[..., TBT, None] / self.decode_dilation - tail_s[..., None]
        prefill, slack_s = sums[..., PREFILL, None], minima[..., SLACK:]
        waits_s = (_TAIL_OF_WAITS / 2 * sums[..., PREFILL_SQUARE, None]) * self.prefill_dilation**2
        return _Needs(
            busy=self.decode_loss * prefill + decode[..., None],
            tbt=_part((round_s * decode + sums[..., DECODE_OWN])[..., None], room_s),
            kv=_part(round_s * sums[..., KV] + sums[..., KV_OWN], self.pool_beside(sums)),
            batch=-minima[..., BATCH] * round_s / self.max_running,
            ttft=_part(waits_s, slack_s) + prefill * self.prefill_dilation,
        )


@dataclass(frozen=True, slots=True)
class _Needs:
    """Parts of each limit that a load takes: 1 is all of it. `busy`, `tbt` and `ttft` [..., ways], `kv` and `batch`
    [...]; `busy` adds to each but `ttft`.
    """

    busy: Floats
    tbt: Floats
    kv: Floats
    batch: Floats
    ttft: Floats

    def of_limits(self) -> Mapping[Limit, Floats]:
        """[..., ways] of each."""
        return {
            Limit.TBT: self.busy + self.tbt,
            Limit.KV: self.busy + self.kv[..., None],
            Limit.BATCH: self.busy + self.batch[..., None],
            Limit.TTFT: self.ttft,
        }


def _part(needed: Floats, amount: Floats) -> Floats:
    """Divides a need by what there is; where there is nothing, any need counts as far beyond it."""
    return np.where(amount > 0, needed / np.maximum(amount, _LITTLE), _TOO_MUCH)


def _factor_of(need: Floats) -> Floats:
    return np.where(need < _TOO_MUCH, 1.0 / np.maximum(need, 1.0 / LARGEST_FACTOR), 0.0)
