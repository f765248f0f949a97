"""MuxServe's throughput estimate and parallel candidates exactly as printed: Eq. 2 and 3, Algorithm 2.

    tpt_m = min(b_m / (sum_i t_p^i + t_d^m l_o^m), W_m)     F(b, W) = max sum_m tpt_m, |R_i - R_j| <= epsilon

t_p^i: the prefill of a batch of b_i prompts, on all SMs (the text does not say on how many); t_d^m: a decode step of
b_m sequences on the SMs of m's candidate, the fewest with which m alone meets its load, or all of them. R are token
blocks by request rate: with epsilon 0 blocks are shared out by rates, and since every tpt grows with a common factor on
such batches, F has its maximum where all blocks are used. Decodes of other LLMs cost nothing, and nobody adds up the
SMs of candidates: neither is in print. estimation/throughput.py has rounds in which all decode.
"""

from collections.abc import Iterable

import numpy as np

from placement.estimation.problem_arrays import Estimator, Instance
from placement.estimation.step_costs import corrected, step_costs
from placement.estimation.throughput import Floats

_SM_SHARES = tuple(tenths / 10 for tenths in range(1, 11))
_LITTLE = 1e-12
_Decode = tuple[float, float]
"""Seconds of a step, and of each of its sequences."""


class PrintedThroughput:
    """F of the kinds and models of `instance`, by their numbers. `sm_shares` [kinds, models] are the candidates'."""

    def __init__(self, instance: Instance, estimator: Estimator) -> None:
        self._instance = instance
        self._estimator = estimator
        shape = (len(instance.kinds), len(instance.models))
        self.sm_shares = np.ones(shape)
        self._decode = np.zeros((*shape, 2))
        self._known: dict[tuple[int, frozenset[int]], float] = {}
        for kind, costs in enumerate(instance.costs):
            for model in map(int, np.flatnonzero(costs.runs)):
                self._choose_candidate(kind, model)

    def of_unit(self, kind: int, models: Iterable[int]) -> float:
        """F of a unit of the kind that holds these models."""
        key = (kind, frozenset(models))
        if key not in self._known:
            self._known[key] = float(self.of_models(kind, np.array(sorted(key[1]), dtype=np.intp)).sum())
        return self._known[key]

    def of_models(self, kind: int, models: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Floats:
        """Throughput of each of a unit's models."""
        costs, rates_per_s = self._instance.costs[kind], self._instance.rates_per_s[models]
        demand_per_s = float(rates_per_s.sum())
        if demand_per_s <= 0:
            return np.zeros(len(models))
        blocks = max(0.0, costs.pool_blocks - costs.blocks_per_byte * float(costs.resident_bytes[models].sum()))
        batch = blocks * rates_per_s / demand_per_s / np.maximum(costs.blocks_per_sequence[models], _LITTLE)
        batch = np.minimum(batch, costs.max_running)
        decode_s = self._decode[kind, models, 0] + batch * self._decode[kind, models, 1]
        batch_s = float((batch * costs.prefill_s[models]).sum()) + costs.output_tokens[models] * decode_s
        return np.asarray(np.minimum(batch / np.maximum(batch_s, _LITTLE), rates_per_s))

    def _choose_candidate(self, kind: int, model: int) -> None:
        """Algorithm 2, for one degree of tensor parallelism."""
        alone = np.array([model], dtype=np.intp)
        for share in _SM_SHARES:
            self.sm_shares[kind, model] = share
            self._decode[kind, model] = self._decode_on(kind, model, share)
            if self.of_models(kind, alone)[0] >= self._instance.rates_per_s[model]:
                return

    def _decode_on(self, kind: int, model: int, share: float) -> _Decode:
        unit, placed = self._instance.kinds[kind], self._instance.models[model]
        if unit.device is None:
            return 0.0, 0.0
        costs = step_costs(
            placed.spec,
            placed.demand,
            self._estimator.latency_of(unit.device, unit.num_gpus),
            max(1, round(share * unit.device.num_sms)),
            host_s=self._estimator.host_s_of(unit.device),
            batch_tokens=unit.launch_limits.batch_tokens,
        )
        costs = corrected(costs, unit.correction, placed.correction)
        return costs.decode_s, costs.decode_s_per_sequence
