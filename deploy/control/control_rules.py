"""Works out how a control loop behaves: its patience with units, and how readily it moves models."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deploy.fleet_file.replan_mode import Replan
from pdmux_actor.lease import QUIET_HEARTBEAT_S
from placement.scaling.elastic_pool import Ceilings

if TYPE_CHECKING:  # the planner's process starts in half the time without the fleet file
    from deploy.fleet_file.settings import PlacementSection


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlTiming:
    """`expiry_s`: a unit that is silent for so long is gone, one that was leaving after `farewell_s`. `quiet_s`: a unit
    that is silent for so long gives way to a new one of its pool. `settle_s`: how long the first plan waits for
    expected units. `warm_up_s`: how long a fresh control loop waits for reports before it tells gateways what it knows:
    its restart looks like silence. `blind_s` takes the place of `expiry_s` when most units are silent at once, which
    looks like a broken network. `replaced_s`: so long another is waited for in the place of a unit that went, where a
    model would have no replica meanwhile.
    """

    expiry_s: float = 15.0
    farewell_s: float = 3.0
    quiet_s: float = 1.9 * QUIET_HEARTBEAT_S  # one may be late by most of a period; nobody is replaced much faster
    settle_s: float = 20.0
    warm_up_s: float = 3.0
    blind_s: float = 30.0
    replaced_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRules:
    """Says when demand moves models. What the fleet needs (a unit is lost, a model is new or woken) is done in every
    mode.

    `replan`: "auto" follows demand, "shadow" only records what it would do, "off" does neither; "scratch" follows
    demand as if nothing were loaded yet, the baseline that shows what looking at the current plan is worth.
    `replan_every_s`: between two looks at demand, unless a rate jumps. `min_gain`: the share of demand that a plan
    must serve in addition to be worth moving for; where it serves no less, so is a gain of `min_model_gain` of one
    model's demand, either if a minute of it is more than what the moves interrupt; or a gain of
    `min_saved_per_gib_s` late requests per second for each GiB of weights that is read for it. `min_residency_s`: a
    replica stays at least so long, unless a model without a place waits. `max_moves_per_min`: loads of models that
    are served already. `stale_s`: older demand moves nothing. `max_deaths` of one place of a unit, or with one
    model loading, within `deaths_window_s` take it out for `out_s`. `learn`: plans are corrected by what units
    measure. `part_neighbours`: they count on what models were seen to lose to each other. `ceilings` bound the
    nodes of all pools that follow demand. `hold_s`: gateways refuse what has waited so long for a model without a
    place.
    """

    replan: Replan = "auto"
    replan_every_s: float = 15.0
    min_gain: float = 0.02
    min_model_gain: float = 0.1
    min_saved_per_gib_s: float = 0.1
    min_residency_s: float = 60.0
    max_moves_per_min: int = 6
    learn: bool = True
    part_neighbours: bool = True
    stale_s: float = 15.0
    max_deaths: int = 3
    deaths_window_s: float = 600.0
    out_s: float = 300.0
    ceilings: Ceilings = field(default_factory=Ceilings)
    hold_s: float = 30.0


def rules_of(placement: "PlacementSection", *, hold_s: float) -> ControlRules:
    return ControlRules(
        replan=placement.replan,
        replan_every_s=placement.replan_every_s,
        min_gain=placement.min_gain,
        min_residency_s=placement.min_residency_s,
        max_moves_per_min=placement.max_moves_per_min,
        learn=placement.learn,
        part_neighbours=placement.part_neighbours,
        ceilings=Ceilings(max_cost_per_hour=placement.max_cost_per_hour, max_gpus=placement.max_gpus),
        hold_s=hold_s,
    )
