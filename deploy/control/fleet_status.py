"""The state of a fleet as a person asks for it."""

from dataclasses import dataclass

from deploy.control.decision_history import PlacementDecision
from pdmux_actor.lease import ModelPhase, UnitReport
from placement.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """`phases` has one entry per unit that has the model on its device or on the way there. `problem` says why it is
    not served, and the remedy. `is_asleep`: nobody asks for it, and no device holds it. `asleep_on`: units whose host
    memory holds its weights. `rate_per_s` is what the control loop plans for.
    """

    model: str
    phases: tuple[ModelPhase, ...]
    planned_units: tuple[str, ...]
    problem: str | None
    is_asleep: bool = False
    asleep_on: tuple[str, ...] = ()
    rate_per_s: float = 0.0

    @property
    def is_ready(self) -> bool:
        return ModelPhase.READY in self.phases


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitStatus:
    """`out_for_s`: it keeps dying and holds nothing for so long; 0 for a unit in use."""

    report: UnitReport
    silent_s: float
    out_for_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """`plan` is in force, `goal` where the control loop is going. `decisions`: newest first."""

    models: tuple[ModelState, ...]
    units: tuple[UnitStatus, ...]
    policy: str
    plan: Plan
    goal: Plan
    decisions: tuple[PlacementDecision, ...]
