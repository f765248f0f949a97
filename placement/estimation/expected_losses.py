"""Says what the throughput estimate expects models of a unit to lose to each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placement.estimation.problem_arrays import Estimator, UnitKind, make_instance
from placement.plan import UnitCapacity
from placement.problem import PlacementModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedLoss:
    """Means, of a first token and of a gap."""

    ttft_s: float
    tbt_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedSharing:
    """`headroom`: the factor by which the unit's load could grow within SLOs. `losses`: by model and neighbour."""

    headroom: float
    losses: Mapping[tuple[str, str], ExpectedLoss]


def expected_sharing(
    unit: UnitCapacity, models: Sequence[PlacementModel], rates_per_s: Mapping[str, float], estimator: Estimator
) -> ExpectedSharing:
    """Whatever is known of strains. Of a round of decode (throughput.py: T = A / (1 - X)) a neighbour's part is its own
    step and what its prefills take from decode; before a first token is what its prefills keep waiting, by Kingman,
    and what sharing the SMs costs the model's own. No losses are told where the estimate says that queues grow without
    bound.
    """
    instance = make_instance([unit], models, estimator)
    costs = instance.costs[instance.kinds.index(UnitKind.of(unit))]
    names = [m.model for m in instance.models]
    numbers, rate = np.arange(len(names)), np.array([rates_per_s[name] for name in names])
    sums, minima = costs.sums(numbers, rate).sum(axis=0), costs.minima(numbers, rate).min(axis=0)
    (way, _), headroom = costs.limits(sums, minima), float(costs.factor(sums, minima))
    tokens_per_s, decode_s, prefill = rate * costs.output_tokens, costs.decode_s, rate * costs.prefill_s
    per_round_s = decode_s * -np.expm1(-tokens_per_s * 4.0 * decode_s)
    busy = costs.decode_loss[way] * prefill + tokens_per_s * costs.decode_s_per_sequence
    dilation, lane = costs.prefill_dilation[way], float(prefill.sum()) * costs.prefill_dilation[way]
    if busy.sum() >= 1 or lane >= 1:
        return ExpectedSharing(headroom=headroom, losses={})
    round_s = per_round_s.sum() / (1 - busy.sum())
    tbt_s = per_round_s + round_s * busy
    waits_s = dilation**2 * rate * costs.prefill_s**2 * costs.arrival_scv / 2 / (1 - lane)
    losses = {
        (model, other): ExpectedLoss(
            ttft_s=float(waits_s[j] + costs.prefill_s[i] * (dilation - 1)), tbt_s=float(tbt_s[j])
        )
        for i, model in enumerate(names)
        for j, other in enumerate(names)
        if i != j
    }
    return ExpectedSharing(headroom=headroom, losses=losses)
