"""Predicts which share of each model's requests will be in time in the next minute."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from placement.estimation.plan_estimate import ModelEstimate, UnitEstimate
from placement.scaling.predicted_attainment import started_in_time

HORIZON_S = 60.0
_UNCERTAINTY = 0.15  # of a demand that was counted over a minute or two


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareInTime:
    """`now`: of the next minute's requests. `lasting`: if they go on to come so."""

    now: float
    lasting: float


def share_in_time(model: ModelEstimate, units: Sequence[UnitEstimate], ttft_s: float) -> ShareInTime:
    """`units` have the model. Where they keep up with what comes, late is who waits too long among others
    (`lost_to_waits`): nine in ten may be in time at a load of which the estimate says that nine in ten are served *with
    99 % in time*. Where they can serve the share s < 1 only, the queue grows as well: after t seconds requests wait for
    t * (1/s - 1), so they are in time until that is the target T, which is for T * s / (1 - s).
    """
    served = model.served_share
    if served >= 1.0 or math.isinf(ttft_s) or not model.meets_slo or not units:
        return ShareInTime(now=served, lasting=served)
    loads = [(r.rate_per_s, u) for u in units for r in u.replicas if r.model == model.model and r.rate_per_s > 0]
    queues = [(rate, unit.queue) for rate, unit in loads if unit.queue is not None]
    asked_per_s = sum(rate for rate, _ in loads)
    if asked_per_s <= 0 or len(queues) < len(loads):
        return ShareInTime(now=_until_late(served, ttft_s), lasting=served)
    busy = sum(rate * queue.busy for rate, queue in queues) / asked_per_s
    slack_s = sum(rate * queue.slack_s[model.model] for rate, queue in queues) / asked_per_s
    pulls_per_s = sum(2.0 / queue.work_s for _, queue in queues)
    started = started_in_time(busy, pulls_per_s, slack_s, len(queues), uncertainty=_UNCERTAINTY)
    flows = min(sum(rate * min(1.0, unit.lane_headroom) for rate, unit in loads) / asked_per_s, 1.0 / max(1.0, busy))
    lasting = max(served, min(flows, started))
    # Where nothing grows the next minute is as those after it: no step down from a share of 1.
    return ShareInTime(now=lasting if flows >= 1.0 else min(_until_late(flows, ttft_s), started), lasting=lasting)


def _until_late(flows: float, ttft_s: float) -> float:
    """Share of a minute."""
    return 1.0 if flows >= 1.0 else min(1.0, ttft_s * flows / (1.0 - flows) / HORIZON_S)
