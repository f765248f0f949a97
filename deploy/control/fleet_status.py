"""The state of a fleet as a person asks for it."""

from dataclasses import dataclass

from deploy.control.cordons import Cordon
from deploy.control.decision_history import PlacementDecision
from deploy.control.plan_worth import PlanLook
from deploy.control.pool_scaling import PoolState
from deploy.control.step_evidence import StepResidual
from pdmux_actor.lease import LoadProgress, ModelPhase, UnitReport
from pdmux_actor.messages import Slo
from placement.plan import Plan
from placement.step_correction import UNCORRECTED, StepCorrection
from router.admission.demand_report import ModelAsked


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """`phases` has one entry per unit that has the model on its device or on the way there. `problem` says why it
    is not served, and the remedy. `is_asleep`: no device holds it, since nobody asks for it or others have their
    turn. `asleep_on`: units whose host memory holds its weights. `rate_per_s` is what the control loop plans for.
    `progress` is the load's that is ahead. `asked` sums what gateways count; None: none has been heard of lately.
    `weight_bytes` is 0 where it is not known. `with_other_weights` counts replicas that have others yet than the
    fleet file names, `with_its_weights` those that serve these.
    """

    model: str
    phases: tuple[ModelPhase, ...]
    planned_units: tuple[str, ...]
    problem: str | None
    is_asleep: bool = False
    asleep_on: tuple[str, ...] = ()
    rate_per_s: float = 0.0
    progress: LoadProgress | None = None
    asked: ModelAsked | None = None
    slo: Slo | None = None
    weight_bytes: int = 0
    with_other_weights: int = 0
    with_its_weights: int = 0

    @property
    def is_ready(self) -> bool:
        return ModelPhase.READY in self.phases

    @property
    def is_as_asked(self) -> bool:
        """Says whether it is ready, and nothing else than what the fleet file names is."""
        return self.is_ready and not self.with_other_weights

    @property
    def weights_told(self) -> str:
        """Returns how far a change of its weights is; "" while there is none."""
        told = f"{self.with_its_weights} of {len(self.phases)} replicas have the new weights"
        return told if self.with_other_weights else ""

    @property
    def state(self) -> str:
        """Returns what people read of it: ready, asleep, its phases, or unavailable."""
        if self.is_ready:
            return "ready"
        if self.is_asleep:
            return "asleep"
        return ", ".join(sorted(set(self.phases))) or "unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitStatus:
    """`out_for_s`: it keeps dying and holds nothing for so long; 0 for a unit in use. `cordon`: what keeps it from
    taking new models. `correction` is what plans make of the unit's measured steps, `residuals` what was measured.
    """

    report: UnitReport
    silent_s: float
    out_for_s: float = 0.0
    cordon: Cordon | None = None
    correction: StepCorrection = UNCORRECTED
    residuals: tuple[StepResidual, ...] = ()

    @property
    def on_device(self) -> tuple[str, ...]:
        """Models that its device holds, or is about to or still does."""
        return tuple(s.model for s in self.report.models if s.phase not in (ModelPhase.ASLEEP, ModelPhase.FAILED))

    @property
    def cordon_state(self) -> str | None:
        """`cordoned`, `draining` while models are on it, `drained` afterwards."""
        if self.cordon is None:
            return None
        if not self.cordon.drains:
            return "cordoned"
        return "draining" if self.on_device else "drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """`plan` is in force, `goal` where the control loop is going. `decisions`: newest first. `cordons`: what was asked
    for, also of units and nodes that are not there now. `look`: what the planner found last, whether or not it was
    adopted. `pools` is empty where no pool's number of nodes may change. `state_problem`: why what a restart must not
    lose is not kept; "" where it is.
    """

    models: tuple[ModelState, ...]
    units: tuple[UnitStatus, ...]
    policy: str
    plan: Plan
    goal: Plan
    decisions: tuple[PlacementDecision, ...]
    cordons: tuple[Cordon, ...] = ()
    look: PlanLook | None = None
    pools: tuple[PoolState, ...] = ()
    state_problem: str = ""
