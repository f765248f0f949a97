"""The state of a fleet as a person asks for it."""

from dataclasses import dataclass

from pdmux_actor.lease import ModelPhase, UnitReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """`phases` has one entry per unit that reports the model. `problem` says why it is not served, and the remedy."""

    model: str
    phases: tuple[ModelPhase, ...]
    planned_units: tuple[str, ...]
    problem: str | None

    @property
    def is_ready(self) -> bool:
        return ModelPhase.READY in self.phases


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitState:
    report: UnitReport
    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    models: tuple[ModelState, ...]
    units: tuple[UnitState, ...]
    policy: str
