"""How much load a unit carries within its SLOs: MuxServe's throughput estimate (Eq. 3) for continuous batching.

Eq. 3 reads tpt_m = min(b_m / (sum_i t_p^i + t_d^m l_o^m), W_m): a batch of m waits for the prefills of all models,
then takes l_o decode steps. Here batches are continuous. With x_m requests/s, output length o_m, prefill time p_m, and
decode steps of alpha_m + beta_m b_m:

    rounds      T = A / (1 - X)    A = sum alpha_m a_m, X = loss sum x_m p_m + sum x_m o_m beta_m
    sequences   b_m = x_m o_m T    (Little)

Prefills run one after the other; decode goes on beside them and loses `loss` of its progress (1: none at all goes on).
One round is a decode step of every model that has sequences; a_m is the chance that m has any. Every limit then is
linear in a common factor lambda on all x, so the largest lambda has a closed form, and units are evaluated by the
thousand. Sums over the models of a unit are all that it needs (`Terms`), so adding a model is adding a row.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Columns of sums over the models of a unit.
BYTES, FLOOR, ROUND, ROUND_VARIANCE, DECODE, PREFILL, PREFILL_SQUARE, KV, KV_OWN, DECODE_OWN, LOAD, MODELS = range(12)
NUM_SUMS = 12
# Columns of minima over the models of a unit; SLACK has one per way of sharing, so it comes last.
TBT, BATCH, STEP, SLACK = range(4)  # BATCH: -(output tokens/s), STEP: -(seconds), as minima

LARGEST_FACTOR = 1e6
_NEVER_S = 1e9
# 99 % of waits of an M/G/1 queue are below ln(100) of its mean wait; 99 % of a normal below 2.33 sigma.
_TAIL_OF_WAITS = float(np.log(100))
_TAIL_OF_ROUNDS = 2.33
_ROUNDS_LENGTH = 4.0  # a round is taken to be so many times a model's own step, for its chance to be active


class Limit(StrEnum):
    """What keeps a unit from carrying more."""

    TBT = "TBT"
    KV = "KV blocks"
    BATCH = "running sequences"
    TTFT = "TTFT"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KindCosts:
    """Of every model on one kind of unit; arrays over models, `slack_s` [models, ways]. `runs` is False where a model
    cannot run. `pool_blocks`, `memory_bytes`: what the kind offers.
    """

    num_gpus: int
    memory_bytes: float
    pool_blocks: float
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
    tbt_s: Floats
    slack_s: Floats
    decode_dilation: Floats
    prefill_dilation: Floats
    decode_loss: Floats
    decode_sms: Floats

    @property
    def num_ways(self) -> int:
        return len(self.decode_loss)

    def sums(self, model: int | npt.NDArray[np.intp], rate_per_s: float | Floats) -> Floats:
        """[..., NUM_SUMS] of replicas that get `rate_per_s` requests a second."""
        rate = np.asarray(rate_per_s, dtype=np.float64)
        step_s, tokens_per_s = self.decode_s[model], rate * self.output_tokens[model]
        active = -np.expm1(-tokens_per_s * _ROUNDS_LENGTH * step_s)
        decode = tokens_per_s * self.decode_s_per_sequence[model]
        kv = tokens_per_s * self.blocks_per_sequence[model]
        prefill_s = self.prefill_s[model]
        return np.stack(
            (
                self.resident_bytes[model] + 0.0 * rate,
                self.floor_blocks[model] + 0.0 * rate,
                step_s * active,
                step_s**2 * active * (1 - active),
                decode,
                rate * prefill_s,
                rate * prefill_s**2,
                kv,
                kv * step_s * (1 - active),  # while m has sequences, its own step is part of every round
                decode * step_s * (1 - active),
                rate,
                1.0 + 0.0 * rate,
            ),
            axis=-1,
        )

    def minima(self, model: int | npt.NDArray[np.intp], rate_per_s: float | Floats) -> Floats:
        """[..., SLACK + ways]"""
        rate = np.asarray(rate_per_s, dtype=np.float64)
        heads = np.stack(
            (self.tbt_s[model] + 0.0 * rate, -rate * self.output_tokens[model], -self.decode_s[model] + 0.0 * rate),
            axis=-1,
        )
        return np.concatenate(
            (heads, np.broadcast_to(self.slack_s[model], (*heads.shape[:-1], self.num_ways))), axis=-1
        )

    def holds(self, sums: Floats) -> npt.NDArray[np.bool_]:
        """Whether weights and one mean request of each model fit."""
        fits = (sums[..., BYTES] <= self.memory_bytes) & (sums[..., FLOOR] <= self.pool_blocks)
        return np.asarray(fits & (sums[..., MODELS] <= self.max_models))

    def factor(self, sums: Floats, minima: Floats) -> Floats:
        """The largest lambda by which the load of units may grow within SLOs; below 1 a unit is overloaded. 0 where a
        model cannot meet its SLO there at any load.
        """
        return np.asarray(self._factors(sums, minima).max(axis=-1))

    def limits(self, sums: Floats, minima: Floats) -> tuple[int, dict[Limit, float]]:
        """Of one unit: the way of sharing that admits most, and the factor that each limit alone would admit."""
        limits = self._limits(sums, minima)
        way = int(np.min([*limits.values()], axis=0).argmax())
        return way, {limit: float(factors[way]) for limit, factors in limits.items()}

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

    def _factors(self, sums: Floats, minima: Floats) -> Floats:
        """[..., ways]"""
        by_tbt, by_kv, by_batch, by_ttft = self._limits(sums, minima).values()
        return np.minimum(np.minimum(by_tbt, by_kv), np.minimum(by_batch, by_ttft))

    def _limits(self, sums: Floats, minima: Floats) -> dict[Limit, Floats]:
        """Each [..., ways]"""
        column = sums[..., None, :]
        round_s, decode = column[..., ROUND], column[..., DECODE]
        busy = self.decode_loss * column[..., PREFILL] + decode
        tail_s = np.maximum(round_s + _TAIL_OF_ROUNDS * np.sqrt(column[..., ROUND_VARIANCE]), -minima[..., STEP, None])
        room_s = np.maximum(0.0, minima[..., TBT, None] / self.decode_dilation - tail_s)
        slack_s = np.maximum(0.0, minima[..., SLACK:])
        waits_s = _TAIL_OF_WAITS / 2 * column[..., PREFILL_SQUARE] * self.prefill_dilation**2
        pool, running = self.pool_blocks, self.max_running
        return {
            Limit.TBT: _ratio(room_s, round_s * decode + column[..., DECODE_OWN] + room_s * busy),
            Limit.KV: _ratio(pool, round_s * column[..., KV] + column[..., KV_OWN] + pool * busy),
            Limit.BATCH: _ratio(running, -minima[..., BATCH, None] * round_s + running * busy),
            Limit.TTFT: _ratio(slack_s, waits_s + slack_s * column[..., PREFILL] * self.prefill_dilation),
        }


def _ratio(amount: Floats | float, needed: Floats) -> Floats:
    """Where nothing is needed anything will do, unless there is nothing."""
    return np.minimum(np.divide(amount, np.maximum(needed, 1e-15)), LARGEST_FACTOR)
