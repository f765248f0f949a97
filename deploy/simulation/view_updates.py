"""Defines what the gateways of a simulated fleet are told of it, twice a second."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from deploy.control.decision_history import PlacementDecision
from deploy.simulation.gateway import SimulatedGateway
from deploy.simulation.node_supply import NodeUse
from deploy.simulation.units import SimulatedUnit, ready_models, report_of
from pdmux_actor.messages import Slo
from pdmux_actor.model_info import longest_sequence_tokens
from router.view import FleetView, ModelCard, UnitView


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetModel:
    model: str
    slo: Slo
    vocab_size: int


class ViewUpdates(Protocol):
    moves_models: bool

    def view(self, gateways: Sequence[SimulatedGateway], now_s: float) -> FleetView: ...

    def longest_tokens(self, model: str) -> int | None:
        """Returns the longest sequence that a unit takes, prompt and output together. None: no unit has the model or
        will have it.
        """
        ...

    def has(self, unit_id: str, model: str) -> bool:
        """Ready on that unit now."""
        ...

    def has_died(self, unit_id: str) -> bool:
        """Says whether what the unit held was lost with it, and not given back."""
        ...

    def decisions(self, now_s: float) -> tuple[PlacementDecision, ...]: ...

    def node_use(self, now_s: float) -> NodeUse | None:
        """None where no node comes or goes."""
        ...


MakeViewUpdates = Callable[[Sequence[FleetModel], Sequence[SimulatedUnit]], ViewUpdates]


class FixedPlan:
    """Units keep the models that they are built with."""

    moves_models = False

    def __init__(self, models: Sequence[FleetModel], units: Sequence[SimulatedUnit]) -> None:
        self._cards = tuple(ModelCard(model=m.model, source="", revision=None, slo=m.slo, created_s=0) for m in models)
        self._units = units
        self._longest_tokens = longest_placed(units)
        self._statuses = {unit.identity.unit_id: ready_models(unit.design) for unit in units}
        self._reports: dict[str, UnitView] = {}

    def view(self, gateways: Sequence[SimulatedGateway], now_s: float) -> FleetView:
        """Units to which nothing has happened say what they said before."""
        for unit in self._units:
            if unit.is_stale:
                unit.is_stale = False
                unit_id = unit.identity.unit_id
                report = report_of(unit, self._statuses[unit_id])
                self._reports[unit_id] = UnitView(report=report, age_s=0.0)
        return FleetView(
            models=self._cards,
            units=tuple(self._reports[unit.identity.unit_id] for unit in self._units),
            stream_token="",
            num_gateways=len(gateways),
        )

    def longest_tokens(self, model: str) -> int | None:
        return self._longest_tokens.get(model)

    def has(self, unit_id: str, model: str) -> bool:
        return True

    def has_died(self, unit_id: str) -> bool:
        return False

    def decisions(self, now_s: float) -> tuple[PlacementDecision, ...]:
        return ()

    def node_use(self, now_s: float) -> NodeUse | None:
        return None


def longest_placed(units: Sequence[SimulatedUnit]) -> dict[str, int]:
    """Returns, by model, the longest sequence that any unit takes with the models it is built with."""
    longest: dict[str, int] = {}
    for placed in (m for unit in units for m in unit.design.models):
        tokens = longest_sequence_tokens(placed.info, placed.quota_blocks)
        longest[placed.info.model] = max(tokens, longest.get(placed.info.model, 0))
    return longest
