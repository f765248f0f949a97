"""Says which models of a unit lose much of their targets to another one of it."""

from collections.abc import Iterator

from deploy.control.fleet_status import FleetStatus
from pdmux_actor.messages import ModelLoad, Slo

LARGE_SHARE = 0.25
"""Of a target, lost to neighbours: enough to tell of."""


def large_losses(status: FleetStatus) -> Iterator[str]:
    """One line for each model, unit and target of which neighbours took much in the last seconds."""
    slos = {m.model: m.slo for m in status.models}
    for unit in status.units:
        for load in unit.report.load.models if unit.report.load is not None else ():
            slo = slos.get(load.model)
            if slo is not None:
                yield from (f"{load.model} on unit {unit.report.unit_id}: {told}" for told in _told(load, slo))


def _told(load: ModelLoad, slo: Slo) -> Iterator[str]:
    if load.ttft_lost_s is not None and load.ttft_lost_s >= LARGE_SHARE * slo.ttft_s:
        most = max(load.lost_to, key=lambda loss: loss.ttft_s, default=None)
        yield _line("a first token", load.ttft_lost_s, slo.ttft_s, "" if most is None else most.neighbour)
    if load.tbt_lost_s is not None and load.tbt_lost_s >= LARGE_SHARE * slo.tbt_s:
        most = max(load.lost_to, key=lambda loss: loss.tbt_s, default=None)
        yield _line("a gap between tokens", load.tbt_lost_s, slo.tbt_s, "" if most is None else most.neighbour)


def _line(what: str, lost_s: float, target_s: float, neighbour: str) -> str:
    return f"{what} loses {lost_s * 1000:.0f} of {target_s * 1000:.0f} ms to others, most of it to {neighbour or 'one'}"
