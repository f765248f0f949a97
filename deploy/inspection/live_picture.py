"""Makes the picture that consoles follow from the state of a fleet. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from deploy.control.fleet_status import FleetStatus, ModelState, UnitStatus
from deploy.inspection.live_diagnosis import why_it_suffers
from deploy.inspection.live_fleet import (
    MAX_UNITS,
    LiveDecision,
    LiveFleet,
    LiveModel,
    LivePool,
    LiveReplica,
    LiveSelection,
    LiveUnit,
)
from deploy.inspection.live_history import RecentRequests
from pdmux_actor.lease import QUIET_HEARTBEAT_S, ModelPhase, ModelStatus
from pdmux_actor.messages import LoadReport, ModelLoad
from router.access.key_figures import jain_index

_SILENT_S, _QUIET_SILENT_S = 1.2, 2.5 * QUIET_HEARTBEAT_S  # units with work report twice a second

_NEWEST = 8


def live_fleet(
    status: FleetStatus, selection: LiveSelection, recent: Mapping[str, RecentRequests], at_s: float
) -> LiveFleet:
    """`recent`: by model, the requests that ended lately. `at_s` is the time of day."""
    of_model: dict[str, list[tuple[UnitStatus, ModelLoad]]] = defaultdict(list)
    for unit in status.units:
        for load in () if unit.report.load is None else unit.report.load.models:
            of_model[load.model].append((unit, load))
    matching = [u for u in status.units if _matches(u, selection)]
    weights = {m.model: m.weight_bytes for m in status.models}
    shown = sorted(matching, key=_trouble)[:MAX_UNITS]
    models = [_model(m, of_model.get(m.model, []), recent.get(m.model, RecentRequests())) for m in status.models]
    tokens_per_s = sum(m.tokens_per_s for m in models)
    return LiveFleet(
        policy=status.policy,
        num_units=len(status.units),
        jain_index=jain_index([m.in_time for m in models if m.in_time is not None]),
        models=tuple(
            replace(m, token_share=round(m.tokens_per_s / tokens_per_s, 3) if tokens_per_s else None) for m in models
        ),
        pools=tuple(_pools(status.units)),
        units=tuple(_unit(u, weights) for u in shown),
        matching=len(matching),
        decisions=told_decisions(status, at_s, newest=_NEWEST),
    )


def told_decisions(status: FleetStatus, at_s: float, *, newest: int) -> tuple[LiveDecision, ...]:
    return tuple(
        LiveDecision(at_s=round(at_s - d.seconds_ago), kind=d.kind, reason=d.reason, moves=d.moves)
        for d in status.decisions[:newest]
    )


def is_silent(unit: UnitStatus) -> bool:
    load = unit.report.load
    return unit.silent_s >= (_SILENT_S if load is not None and load.has_work else _QUIET_SILENT_S)


def _matches(unit: UnitStatus, selection: LiveSelection) -> bool:
    report = unit.report
    return (
        selection.pool in ("", report.pool)
        and (not selection.model or any(s.model == selection.model for s in report.models))
        and (selection.find in report.unit_id or selection.find in report.node)
    )


def _trouble(unit: UnitStatus) -> tuple[bool, int, str]:
    """In order of what a person should look at first; without load the order does not change."""
    waiting = 0 if unit.report.load is None else sum(m.waiting for m in unit.report.load.models)
    return not (is_silent(unit) or unit.out_for_s or unit.report.failure), -(waiting // 4), unit.report.unit_id


def _state(unit: UnitStatus) -> str:
    if unit.out_for_s:
        return "out"
    if is_silent(unit):
        return "silent"
    return "leaving" if unit.report.is_leaving else unit.cordon_state or "ok"


def _note(unit: UnitStatus) -> str:
    if unit.out_for_s:
        return "what ran in its place kept dying"
    if unit.report.failure is not None:
        return unit.report.failure
    load = unit.report.load
    return "" if load is None else load.unpartitioned_reason or ""


def _unit(unit: UnitStatus, weights: Mapping[str, int]) -> LiveUnit:
    report, load = unit.report, unit.report.load
    loads = {} if load is None else {m.model: m for m in load.models}
    lent = {} if load is None else lent_blocks(load)
    return LiveUnit(
        unit=report.unit_id,
        pool=report.pool,
        node=report.node,
        state=_state(unit),
        silent_s=round(unit.silent_s, 1) if is_silent(unit) else 0.0,
        memory_bytes=report.memory_bytes,
        block_bytes=report.block_bytes,
        total_blocks=report.total_blocks,
        free_blocks=report.total_blocks if load is None else load.free_blocks,
        cached_blocks=0 if load is None else load.cached_blocks,
        prefill_sms=0 if load is None else load.prefill_sms,
        decode_sms=0 if load is None else load.decode_sms,
        prefill_bubble_share=0.0 if load is None else round(load.prefill_bubble_share, 3),
        decode_bubble_share=0.0 if load is None else round(load.decode_bubble_share, 3),
        guard_cells_moved=0 if load is None else load.guard_cells_moved_total,
        note=_note(unit),
        models=tuple(
            _replica(s, loads.get(s.model), weights.get(s.model, 0), lent.get(s.model, 0)) for s in report.models
        ),
    )


def lent_blocks(load: LoadReport) -> Mapping[str, int]:
    """Returns what models borrow on a unit, shared among the others as their idle quotas are."""
    borrowed = sum(m.borrowed_blocks for m in load.models)
    idle = {m.model: max(0, m.quota_blocks - m.used_blocks) for m in load.models}
    total = sum(idle.values())
    return {m: min(spare, round(borrowed * spare / total)) if total else 0 for m, spare in idle.items()}


def _replica(status: ModelStatus, load: ModelLoad | None, weight_bytes: int, lent: int) -> LiveReplica:
    progress = status.progress
    is_here = status.phase not in (ModelPhase.ASLEEP, ModelPhase.FAILED)
    told = LiveReplica(
        model=status.model,
        phase=str(status.phase),
        stage="" if progress is None else str(progress.stage),
        share_loaded=None if progress is None else round(progress.share, 3),
        weight_bytes=weight_bytes if is_here else 0,
    )
    if load is None:
        return told
    return replace(
        told,
        quota_blocks=load.quota_blocks,
        own_blocks=load.used_blocks - load.borrowed_blocks,
        borrowed_blocks=load.borrowed_blocks,
        lent_blocks=lent,
        cached_blocks=load.cached_blocks,
        running=load.running,
        waiting=load.waiting,
        in_time=load.request_attainment,
        tokens_per_s=round(load.output_tokens_per_s, 1),
        ttft_lost_s=load.ttft_lost_s,
        tbt_lost_s=load.tbt_lost_s,
        lost_to=load.lost_to,
    )


def _model(model: ModelState, held: Sequence[tuple[UnitStatus, ModelLoad]], recent: RecentRequests) -> LiveModel:
    loads = [load for _, load in held]
    asked = model.asked
    on_units = sum(m.waiting for m in loads)
    in_time = recent.share_in_time
    losses: dict[str, float] = defaultdict(float)
    for load in loads:
        for loss in load.lost_to if load.ttft_lost_s or load.tbt_lost_s else ():
            losses[loss.neighbour] += loss.ttft_s + loss.tbt_s
    told = LiveModel(
        model=model.model,
        state=model.state,
        share_loaded=None if model.is_ready or model.progress is None else round(model.progress.share, 3),
        ttft_s=None if model.slo is None else model.slo.ttft_s,
        tbt_s=None if model.slo is None else model.slo.tbt_s,
        rate_per_s=round(model.rate_per_s, 2),
        waiting=on_units if asked is None else max(asked.waiting, on_units),
        held=0 if asked is None else asked.held,
        oldest_wait_s=0.0 if asked is None else round(asked.oldest_wait_s, 1),
        running=sum(m.running for m in loads),
        in_time=_mean(m.request_attainment for m in loads) if in_time is None else in_time,
        tokens_per_s=round(sum(m.output_tokens_per_s for m in loads), 1),
        token_share=None,
        used_blocks=sum(m.used_blocks for m in loads),
        quota_blocks=sum(m.quota_blocks for m in loads),
        units=len(model.phases),
        asleep_on=len(model.asleep_on),
        ttft_lost_s=_mean(m.ttft_lost_s for m in loads),
        tbt_lost_s=_mean(m.tbt_lost_s for m in loads),
        neighbour=max(losses, key=lambda name: (losses[name], name)) if any(losses.values()) else "",
        suffers=False,
        why="",
    )
    return why_it_suffers(
        told,
        model.problem,
        silent=sum(is_silent(unit) for unit, _ in held),
        recent=recent,
        first_in_time_on_units=_mean(m.ttft_attainment for m in loads),
    )


def _mean(figures: Iterable[float | None]) -> float | None:
    known = [f for f in figures if f is not None]
    return sum(known) / len(known) if known else None


def _pools(units: Sequence[UnitStatus]) -> list[LivePool]:
    by_pool: dict[str, list[UnitStatus]] = defaultdict(list)
    for unit in units:
        by_pool[unit.report.pool].append(unit)
    return [_pool(name, by_pool[name]) for name in sorted(by_pool)]


def _pool(name: str, units: Sequence[UnitStatus]) -> LivePool:
    loads = [u.report.load for u in units if u.report.load is not None]
    models = [m for load in loads for m in load.models]
    return LivePool(
        pool=name,
        nodes=len({u.report.node for u in units}),
        units=len(units),
        silent=sum(is_silent(u) for u in units),
        strained=sum(any(m.waiting for m in load.models) for load in loads),
        running=sum(m.running for m in models),
        waiting=sum(m.waiting for m in models),
        used_blocks=sum(m.used_blocks for m in models),
        total_blocks=sum(u.report.total_blocks for u in units),
        prefill_sms=sum(load.prefill_sms for load in loads),
        decode_sms=sum(load.decode_sms for load in loads),
        tokens_per_s=round(sum(m.output_tokens_per_s for m in models), 1),
    )
