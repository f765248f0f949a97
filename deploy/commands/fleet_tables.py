"""The state of a fleet as tables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from msgspec import to_builtins
from rich.table import Table

from deploy.commands.fitted_table import FittedTable
from deploy.commands.table_cells import (
    NONE,
    blocks_cell,
    fitted,
    load_bar,
    lost_cell,
    milliseconds,
    pace_in_words,
    share_cell,
)
from deploy.control.decision_history import PlacementDecision
from deploy.control.fleet_status import FleetStatus, UnitStatus
from deploy.inspection.gateway_figures import ModelFigures
from deploy.inspection.live_diagnosis import large_losses
from pdmux_actor.lease import LoadProgress, LoadStage, ModelStatus, SleepingWeights, UnitReport
from pdmux_actor.messages import LoadReport, ModelLoad

_SHORT_NUMBER = 5  # the dash and four digits
_MOST_LISTED = 3


def model_table(status: FleetStatus) -> FittedTable:
    names = short_names([u.report.unit_id for u in status.units])
    table = fitted("model", "status", "requests/s", "context", "planned on", "asleep on")
    for model in status.models:
        table.add_row(
            model.model,
            model.state,
            f"{model.rate_per_s:.2f}",
            context_cell(model.model, [u.report for u in status.units]),
            listed([names.get(u, u) for u in model.planned_units]),
            listed([names.get(u, u) for u in model.asleep_on]),
        )
    return table


def pool_table(status: FleetStatus) -> FittedTable:
    """Pools whose number of nodes may change."""
    table = fitted(
        "pool",
        "nodes",
        "wanted",
        "bounds",
        "leaving",
        "predicted in time",
        "a node takes",
        "bears",
        "queued tokens",
        "forecast",
    )
    for pool in status.pools:
        predicted = NONE if pool.predicted is None else f"{pool.predicted:.1%}"
        table.add_row(
            pool.pool,
            str(pool.present),
            f"{pool.wanted}{' (shadow)' if pool.shadow else ''}",
            f"{pool.least} to {pool.most}",
            str(len(pool.leaving) // pool.units_per_node),
            predicted,
            f"{pool.provision_s + pool.load_s:.0f} s",
            f"x{pool.bears:.2f}",
            str(pool.signals.queued_tokens),
            NONE if pool.forecast_per_s is None else f"{pool.forecast_per_s:.2f}/s",
        )
    return table


def gateway_table(figures: Mapping[str, ModelFigures]) -> FittedTable:
    """Builds the gateways' table as clients saw it, queueing included."""
    table = fitted("model", "queued", "TTFT p50", "TTFT p99", "TBT p50", "TBT p99")
    for model, found in sorted(figures.items()):
        times = (found.ttft_p50_s, found.ttft_p99_s, found.tbt_p50_s, found.tbt_p99_s)
        table.add_row(model, str(found.queued), *map(milliseconds, times))
    return table


def unit_table(units: Sequence[UnitStatus]) -> FittedTable:
    """One row per model on a unit; "x2" behind its name: it is of two GPUs, or ranks."""
    names = short_names([u.report.unit_id for u in units])
    table = fitted(
        *(
            "unit",
            "model",
            "state",
            "running",
            "waiting",
            "KV blocks of quota",
            "in time",
            "TTFT met",
            "TBT met",
            "lost to others",
        ),
        *("tokens/s", "SMs p/d", "silent"),
        keys=2,
    )
    for unit in units:
        for row in _unit_rows(unit, names[unit.report.unit_id]):
            table.add_row(*row)
    return table


def short_names(unit_ids: Sequence[str]) -> Mapping[str, str]:
    """Beginnings that tell them apart, some characters into the number that ends them."""
    taken = max((len(u.rpartition("-")[0]) + _SHORT_NUMBER for u in unit_ids), default=0)
    while len({u[:taken] for u in unit_ids}) < len(set(unit_ids)):
        taken += 1
    return {u: u[: max(taken, len(u.rpartition("-")[0]) + _SHORT_NUMBER)] for u in unit_ids}


def decision_table(decisions: tuple[PlacementDecision, ...], *, newest: int) -> Table:
    table = _table("ago", "what", "why")
    for decision in decisions[:newest]:
        table.add_row(f"{decision.seconds_ago:.0f} s", decision.kind, "; ".join((decision.reason, *decision.moves)))
    return table


def problems(status: FleetStatus) -> Iterator[str]:
    if status.state_problem:
        yield f"the state of the control loop is not kept, its restart would lose it: {status.state_problem}"
    for model in status.models:
        if model.problem is not None:
            yield f"{model.model}: {' '.join(model.problem.split())}"
        if model.weights_told:
            yield f"{model.model}: {model.weights_told}"
    for unit in status.units:
        if unit.out_for_s:
            yield f"unit {unit.report.unit_id} is out for {unit.out_for_s:.0f} s: what ran in its place kept dying"
        if unit.cordon is not None:
            why = "" if unit.cordon.scope == "unit" else f", by its node {unit.cordon.name}"
            yield f"unit {unit.report.unit_id} is {unit.cordon_state}{why}"
        if (pace := pace_in_words(unit.correction)) is not None:
            yield f"unit {unit.report.unit_id} {pace}"
        load = unit.report.load
        if load is not None and load.unpartitioned_reason is not None:
            yield f"unit {unit.report.unit_id}: prefill and decode compete for all SMs: {load.unpartitioned_reason}"
    yield from large_losses(status)


def as_dict(status: FleetStatus) -> dict[str, object]:
    """Returns the status as plain data for scripts."""
    return {
        "policy": status.policy,
        "state_problem": status.state_problem or None,
        "models": [
            {
                "id": m.model,
                "status": m.state,
                "planned_units": list(m.planned_units),
                "asleep_on": list(m.asleep_on),
                "rate_per_s": m.rate_per_s,
                "problem": m.problem,
                "with_other_weights": m.with_other_weights,
            }
            for m in status.models
        ],
        "units": [unit_dict(u) for u in status.units],
        "cordons": [
            {"scope": str(c.scope), "name": c.name, "drains": c.drains, "is_forced": c.is_forced}
            for c in status.cordons
        ],
        "decisions": [
            {"kind": d.kind, "reason": d.reason, "moves": list(d.moves), "seconds_ago": d.seconds_ago}
            for d in status.decisions
        ],
    }


def _unit_rows(unit: UnitStatus, short_name: str) -> Iterator[tuple[str, ...]]:
    report = unit.report
    short_name = short_name if report.num_gpus == 1 else f"{short_name} x{report.num_gpus}"
    load = report.load
    shares = NONE if load is None else f"{load.prefill_sms}/{load.decode_sms}"
    silent = "out" if unit.out_for_s else f"{unit.silent_s:.1f} s"
    silent = f"{silent}, {unit.cordon_state}" if unit.cordon_state else silent
    loads = _loads(load)
    silent = f"{silent}, leaving" if report.is_leaving else silent
    if not report.models:
        yield (short_name, *([NONE] * 10), shares, silent)
    for i, model in enumerate(report.models):
        name, tail = (short_name, (shares, silent)) if i == 0 else ("", ("", ""))
        yield (name, model.model, _phase(model), *_figures(loads.get(model.model)), *tail)


def _phase(status: ModelStatus) -> str:
    """A sleeper with the host memory that it takes and what waking it should, a load with how far it is."""
    if status.progress is not None:
        return f"{status.phase}: {load_bar(status.progress)}"
    if status.asleep is None:
        return str(status.phase)
    return f"{status.phase} ({status.asleep.host_bytes / 2**30:.1f} GiB, {status.asleep.wake_s:.1f} s)"


def _figures(load: ModelLoad | None) -> tuple[str, ...]:
    if load is None:
        return (NONE,) * 8
    return (
        str(load.running),
        str(load.waiting),
        blocks_cell(load.used_blocks, load.quota_blocks),
        share_cell(load.request_attainment),
        share_cell(load.ttft_attainment),
        share_cell(load.tbt_attainment),
        lost_cell(load.ttft_lost_s, load.tbt_lost_s),
        f"{load.output_tokens_per_s:.1f}",
    )


def unit_dict(unit: UnitStatus) -> dict[str, object]:
    report = unit.report
    loads = _loads(report.load)
    return {
        "unit": report.unit_id,
        "node": report.node,
        "pool": report.pool,
        "num_gpus": report.num_gpus,
        "report_age_s": unit.silent_s,
        "out_for_s": unit.out_for_s,
        "cordon": unit.cordon_state,
        "is_leaving": report.is_leaving,
        "host_memory_bytes": report.host_memory_bytes,
        "prefill_sms": None if report.load is None else report.load.prefill_sms,
        "decode_sms": None if report.load is None else report.load.decode_sms,
        "correction": asdict(unit.correction),
        "measured_steps": [to_builtins(residual) for residual in unit.residuals],
        "unpartitioned_reason": None if report.load is None else report.load.unpartitioned_reason,
        "models": [
            {
                "model": s.model,
                "phase": str(s.phase),
                "error": s.error,
                **_load_dict(loads.get(s.model)),
                **_sleep_dict(s.asleep),
                **_progress_dict(s.progress),
            }
            for s in report.models
        ],
    }


def _sleep_dict(asleep: SleepingWeights | None) -> dict[str, object]:
    return {} if asleep is None else {"host_bytes": asleep.host_bytes, "wake_s": asleep.wake_s}


def _progress_dict(progress: LoadProgress | None) -> dict[str, object]:
    if progress is None:
        return {}
    told = {"stage": str(progress.stage), "done_bytes": progress.done_bytes, "total_bytes": progress.total_bytes}
    if progress.stage is not LoadStage.CAPTURING:
        return told
    return {**told, "done_graphs": progress.done_graphs, "total_graphs": progress.total_graphs}


def _load_dict(load: ModelLoad | None) -> dict[str, object]:
    if load is None:
        return {}
    return {
        "running": load.running,
        "waiting": load.waiting,
        "used_blocks": load.used_blocks,
        "quota_blocks": load.quota_blocks,
        "request_attainment": load.request_attainment,
        "ttft_attainment": load.ttft_attainment,
        "tbt_attainment": load.tbt_attainment,
        "ttft_lost_s": load.ttft_lost_s,
        "tbt_lost_s": load.tbt_lost_s,
        "lost_to": [asdict(loss) for loss in load.lost_to],
        "output_tokens_per_s": load.output_tokens_per_s,
    }


def _loads(load: LoadReport | None) -> dict[str, ModelLoad]:
    return {} if load is None else {m.model: m for m in load.models}


def context_cell(model: str, reports: Sequence[UnitReport]) -> str:
    """The longest sequence that any unit takes."""
    told = [s.max_model_len for report in reports for s in report.models if s.model == model]
    lengths = [length for length in told if length is not None]
    return str(max(lengths)) if lengths else NONE


def listed(units: Sequence[str]) -> str:
    """The first ones: a model may be on hundreds."""
    more = f" and {len(units) - _MOST_LISTED} more" if len(units) > _MOST_LISTED else ""
    return ", ".join(units[:_MOST_LISTED]) + more or NONE


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    return table
