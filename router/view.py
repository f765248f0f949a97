"""The fleet as a gateway sees it."""

from dataclasses import dataclass

from pdmux_actor.lease import UnitReport
from pdmux_actor.messages import Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """A model the fleet offers, whether or not a unit holds it now. `can_wake`: a request makes a unit take it up."""

    model: str
    source: str
    revision: str | None
    slo: Slo
    created_s: int
    can_wake: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitView:
    """A unit's newest report and its age when the view was made."""

    report: UnitReport
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """What the control loop tells every gateway a few times a second. `num_gateways` share the rates of API keys."""

    models: tuple[ModelCard, ...]
    units: tuple[UnitView, ...]
    stream_token: str
    num_gateways: int = 1
