"""Decides whether a plan is worth moving for: by the whole fleet's demand, by one model's, and by what has to be
loaded.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from deploy.control.control_rules import ControlRules
from deploy.control.plan_choice import Needs
from placement.estimation.model_floors import lifts_a_model, starved
from placement.estimation.plan_estimate import ModelEstimate, UnitEstimate, estimate_shortfall_with
from placement.estimation.problem_arrays import Estimator, make_instance
from placement.plan import Plan
from placement.scaling.predicted_attainment import started_in_time

_GIB = 2**30
_READ_BYTES_PER_S = 2e9  # of weights: a fast local disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Appraisal:
    """Holds what a plan does for the demand. `share_in_time`: of all of it in the next minute, from 0 to 1.
    `served_share`: of each model's demand, if it lasts. `asked_per_s` has the same models.
    """

    share_in_time: float
    served_share: Mapping[str, float]
    asked_per_s: Mapping[str, float]

    @property
    def late_per_s(self) -> float:
        return sum(rate * (1.0 - self.served_share[m]) for m, rate in self.asked_per_s.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLook:
    """A plan that was worked out for the demand of a moment, beside what the fleet went for then."""

    why: str
    plan: Plan
    now: Appraisal
    then: Appraisal
    put_to_sleep: tuple[str, ...] = ()


class Appraiser:
    """Appraises plans by the throughput estimate; on units of unknown speed a model with a replica counts as served."""

    def __init__(self, needs: Needs, estimator: Estimator) -> None:
        self._units = needs.units
        self._targets_s = {m.model: math.inf if m.target is None else m.target.ttft_s for m in needs.models}
        self._instance = make_instance(needs.units, needs.models, estimator)  # of a large fleet what takes longest

    def appraise(self, plan: Plan) -> Appraisal:
        return _appraisal(*estimate_shortfall_with(self._instance, self._units, plan), self._targets_s)


def _appraisal(
    models: Sequence[ModelEstimate], units: Sequence[UnitEstimate], targets_s: Mapping[str, float]
) -> Appraisal:
    homes: defaultdict[str, list[UnitEstimate]] = defaultdict(list)
    for unit in units:
        for replica in unit.replicas:
            homes[replica.model].append(unit)
    found = {m.model: share_in_time(m, homes[m.model], targets_s[m.model]) for m in models}
    asked_per_s = sum(m.rate_per_s for m in models)
    in_time_per_s = sum(m.rate_per_s * found[m.model].now for m in models)
    return Appraisal(
        share_in_time=in_time_per_s / asked_per_s if asked_per_s > 0 else 1.0,
        served_share={model: share.lasting for model, share in found.items()},
        asked_per_s={m.model: m.rate_per_s for m in models},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePrice:
    """`read_bytes`: weights that are read from disks. `interrupted`: requests that come meanwhile for replicas that
    make room for them.
    """

    read_bytes: int
    interrupted: float


def is_worth_moving(now: Appraisal, then: Appraisal, price: MovePrice, rules: ControlRules) -> bool:
    """A fleet of a hundred models has one that starves in hardly any of its requests. So what one model gains counts
    too, and what a load saves, as long as no more requests are late in all, or fewer than feeding who starves is worth.
    Whoever gains, a minute of it must be more than what the moves interrupt: near what a fleet can do chance alone
    makes some model late, and a fleet that moves all others for it is late for good. Rules that ask for no gain at all
    (`min_gain` 0) ask what moves cost neither.
    """
    asked_per_s = sum(now.asked_per_s.values())
    interrupted = price.interrupted if rules.min_gain > 0 else 0.0
    gained = then.share_in_time - now.share_in_time
    if gained >= rules.min_gain and gained * asked_per_s * HORIZON_S >= interrupted:
        return True
    saved_per_s = now.late_per_s - then.late_per_s
    asked = {m: rate for m, rate in now.asked_per_s.items() if rate > 0}
    before, after = (np.array([a.served_share[m] for m in asked]) for a in (now, then))
    fed_per_s = (starved(before) - starved(after)) * asked_per_s
    if saved_per_s < 0 and saved_per_s + fed_per_s <= 0:
        return False
    is_earned = (saved_per_s + fed_per_s) * HORIZON_S >= interrupted
    if is_earned and lifts_a_model(before, after, rules.min_model_gain):
        return True
    return saved_per_s > 0 and saved_per_s * _GIB >= rules.min_saved_per_gib_s * price.read_bytes


def move_price(needs: Needs, goal: Plan, plan: Plan) -> MovePrice:
    """Prices the way from `goal` to `plan`. What sleeps in a unit's memory is not read. Whoever goes is missed for as
    long as weights are read in its place.
    """
    sizes = {m.model: m.spec.weight_bytes for m in needs.models}
    asleep = {u.unit_id: set(u.asleep) for u in needs.units}
    before = {u.unit_id: {p.model for p in u.models} for u in goal.units}
    homes = Counter(m for held in before.values() for m in held)
    rates = {m.model: m.demand.rate_per_s / max(1, homes[m.model]) for m in needs.models}
    read_bytes, interrupted = 0, 0.0
    for unit in plan.units:
        held, wanted = before.get(unit.unit_id, set()), {p.model for p in unit.models}
        of_unit = sum(sizes.get(m, 0) for m in wanted - held - asleep.get(unit.unit_id, set()))
        read_bytes += of_unit
        interrupted += of_unit / _READ_BYTES_PER_S * sum(rates.get(m, 0.0) for m in held - wanted)
    return MovePrice(read_bytes=read_bytes, interrupted=interrupted)


def gain_in_words(now: Appraisal, then: Appraisal) -> str:
    told = f"{then.share_in_time:.1%} of it in time instead of {now.share_in_time:.1%}"
    gains = {m: then.served_share[m] - share for m, share in now.served_share.items() if now.asked_per_s[m] > 0}
    most = max(gains, key=lambda m: (gains[m], m), default=None)
    if most is None or gains[most] < 0.01:
        return told
    return f"{told}, {then.served_share[most]:.0%} of {most} served instead of {now.served_share[most]:.0%}"


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
