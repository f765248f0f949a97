"""Says whether a model suffers, and why, in a line; and which models of a unit lose much to another one of it."""

from collections.abc import Iterator
from dataclasses import replace

from deploy.control.fleet_status import FleetStatus
from deploy.inspection.live_fleet import LiveModel
from deploy.inspection.live_history import RecentRequests
from pdmux_actor.messages import ModelLoad, Slo

_FALLEN = 0.9  # of requests in time: below, a person should look
_FULL = 0.95  # of a quota


def why_it_suffers(
    model: LiveModel, problem: str | None, *, silent: int, recent: RecentRequests, first_in_time_on_units: float | None
) -> LiveModel:
    """`silent` counts units that have the model and do not report; `first_in_time_on_units` is the share of first
    tokens that were in time from the request's arrival at its unit.
    """
    reasons = list(_reasons(model, problem, silent))
    is_late = model.in_time is not None and model.in_time < _FALLEN
    is_waiting = model.ttft_s is not None and model.oldest_wait_s > model.ttft_s
    suffers = bool(problem) or silent > 0 or model.held > 0 or is_late or is_waiting
    if suffers and not reasons:
        reasons = [_lateness(model, recent, first_in_time_on_units) if is_late and not is_waiting else _pressure(model)]
    return replace(model, suffers=suffers, why="; ".join(reasons) if suffers else "")


def _reasons(model: LiveModel, problem: str | None, silent: int) -> list[str]:
    told = []
    if problem:
        told.append(" ".join(problem.split()))
    if silent:
        told.append(f"{silent} of its {model.units} units {'is' if silent == 1 else 'are'} silent")
    if model.state == "loading" or (model.held and model.share_loaded is not None):
        share = "" if model.share_loaded is None else f" {model.share_loaded:.0%}"
        told.append(f"loading{share}")
    if model.held:
        told.append(f"{model.held} requests wait for a unit that has it")
    if model.waiting and model.quota_blocks and model.used_blocks >= _FULL * model.quota_blocks:
        told.append(f"out of KV blocks: {model.used_blocks} of {model.quota_blocks}")
    for what, lost_s, target_s in (
        ("a first token", model.ttft_lost_s, model.ttft_s),
        ("a gap between tokens", model.tbt_lost_s, model.tbt_s),
    ):
        if lost_s and target_s and lost_s >= LARGE_SHARE * target_s:
            told.append(f"{what} loses {lost_s * 1000:.0f} ms to {model.neighbour or 'others'}")
    return told


def _pressure(model: LiveModel) -> str:
    return f"more is asked than its units take: {model.waiting} wait, the oldest for {model.oldest_wait_s:.1f} s"


def _lateness(model: LiveModel, recent: RecentRequests, first_in_time_on_units: float | None) -> str:
    """A request may have had both late, its first token and a gap."""
    told = []
    if recent.shed:
        told.append(f"{recent.shed} were turned away by overload")
    if recent.no_capacity:
        told.append(f"{recent.no_capacity} found no unit")
    if recent.first_late:
        is_of_gateway = first_in_time_on_units is not None and first_in_time_on_units >= _FALLEN
        where = " by waiting at the gateway" if is_of_gateway else ""
        told.append(f"{recent.first_late} had a late first token{where}")
    if recent.gaps_late:
        told.append(f"{recent.gaps_late} had a late gap between tokens")
    share = f"{model.in_time or 0:.0%} of its requests were in time"
    return f"{share}; of the last {recent.ended}: {', '.join(told)}" if told else share


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
