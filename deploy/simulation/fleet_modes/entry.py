"""Defines what a fleet mode says of itself."""

from collections.abc import Callable
from dataclasses import dataclass

from deploy.simulation.engine import EngineDesign, OnTokens
from deploy.simulation.event_queue import EventQueue
from deploy.simulation.fleet_modes.split import Split
from deploy.simulation.units import SimulatedUnit, UnitIdentity

MakeUnit = Callable[[UnitIdentity, EngineDesign, Split, EventQueue, OnTokens], SimulatedUnit]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMode:
    """`name` is what experiment files use; `rule` and `source` are its line of docs/simulation.md. `make` makes a unit
    of the engines of a split; the design is that of one of them.
    """

    name: str
    rule: str
    source: str
    make: MakeUnit
