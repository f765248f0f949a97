"""Says whether a fleet is as whole as its plan needs: then one of its nodes may be replaced."""

from typing import Any

import yaml

from deploy.control.fleet_status import FleetStatus, UnitStatus
from deploy.kubernetes.api_server import Document
from pdmux_actor.lease import ModelPhase

_SILENT_S = 5.0
_MOVING = frozenset({ModelPhase.LOADING, ModelPhase.DRAINING, ModelPhase.STALLED, ModelPhase.FAILED})


def what_is_missing(fleet: FleetStatus, expected_units: int) -> str | None:
    """Returns the first thing that a replacement would have to wait for; None: nothing."""
    in_use = sum(_is_in_use(unit) for unit in fleet.units)
    if in_use < expected_units:
        return f"{in_use} of {expected_units} units are in use"
    for unit in fleet.units:
        for model in unit.report.models:
            if model.phase in _MOVING:
                told = f": {model.error}" if model.error else ""
                return f"model {model.model} on unit {unit.report.unit_id} is {model.phase}{told}"
    for state in fleet.models:
        if not state.is_ready and not state.is_asleep:
            return f"model {state.model} is not served" + (f": {state.problem}" if state.problem else "")
    return None


def expected_units(service: Document) -> int:
    """Returns how many units the fleet's Serve config asks for."""
    config: Any = yaml.safe_load(service["spec"]["serveConfigV2"])
    told = [d.get("user_config") or {} for app in config["applications"] for d in app.get("deployments", ())]
    return sum(sum(config.get("expected_units", {}).values()) for config in told)


def _is_in_use(unit: UnitStatus) -> bool:
    report = unit.report
    leaves = report.is_leaving or report.wants_to_leave
    return not leaves and unit.cordon is None and not unit.out_for_s and unit.silent_s < _SILENT_S
