"""Tells what a gateway knows of the fleet by itself, for who asks while the control loop does not answer."""

from dataclasses import dataclass

from router.view import FleetView, ModelCard, UnitView


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFleet:
    """`age_s` is how long ago the control loop told it; the ages of units' reports are as of then."""

    age_s: float
    models: tuple[ModelCard, ...]
    units: tuple[UnitView, ...]


def known_fleet(view: FleetView, age_s: float) -> KnownFleet:
    """Returns the view without what lets into units."""
    return KnownFleet(age_s=age_s, models=view.models, units=view.units)
