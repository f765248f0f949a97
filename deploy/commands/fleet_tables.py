"""The state of a fleet as tables."""

from collections.abc import Iterator

from rich.table import Table

from deploy.control.history import Decision
from deploy.fleet_status import FleetStatus, ModelState, UnitState
from pdmux_actor.lease import ModelStatus, SleepingWeights
from pdmux_actor.messages import LoadReport, ModelLoad

_NONE = "-"


def state_of(model: ModelState) -> str:
    if model.is_ready:
        return "ready"
    if model.is_asleep:
        return "asleep"
    return ", ".join(sorted(set(model.phases))) or "unavailable"


def model_table(status: FleetStatus) -> Table:
    table = _table("model", "status", "planned on", "asleep on", "requests/s", "context")
    for model in status.models:
        lengths = [
            s.max_model_len
            for u in status.units
            for s in u.report.models
            if s.model == model.model and s.max_model_len is not None
        ]
        table.add_row(
            model.model,
            state_of(model),
            ", ".join(model.planned_units) or _NONE,
            ", ".join(model.asleep_on) or _NONE,
            f"{model.rate_per_s:.2f}",
            str(max(lengths)) if lengths else _NONE,
        )
    return table


def unit_table(status: FleetStatus) -> Table:
    """One row per model on a unit."""
    table = _table(
        *(
            "unit",
            "SMs p/d",
            "model",
            "state",
            "running",
            "waiting",
            "blocks",
            "quota",
            "in time",
            "TTFT met",
            "TBT met",
        ),
        *("tokens/s", "silent"),
    )
    for unit in status.units:
        for row in _unit_rows(unit):
            table.add_row(*row)
    return table


def decision_table(decisions: tuple[Decision, ...], *, newest: int) -> Table:
    table = _table("ago", "what", "why")
    for decision in decisions[:newest]:
        table.add_row(f"{decision.seconds_ago:.0f} s", decision.kind, "; ".join((decision.reason, *decision.moves)))
    return table


def problems(status: FleetStatus) -> Iterator[str]:
    for model in status.models:
        if model.problem is not None:
            yield f"{model.model}: {' '.join(model.problem.split())}"
    for unit in status.units:
        if unit.out_for_s:
            yield f"unit {unit.report.unit_id} is out for {unit.out_for_s:.0f} s: what ran in its place kept dying"
        load = unit.report.load
        if load is not None and load.unpartitioned_reason is not None:
            yield f"unit {unit.report.unit_id}: prefill and decode compete for all SMs: {load.unpartitioned_reason}"


def as_dict(status: FleetStatus) -> dict[str, object]:
    """For scripts."""
    return {
        "policy": status.policy,
        "models": [
            {
                "id": m.model,
                "status": state_of(m),
                "planned_units": list(m.planned_units),
                "asleep_on": list(m.asleep_on),
                "rate_per_s": m.rate_per_s,
                "problem": m.problem,
            }
            for m in status.models
        ],
        "units": [_unit_dict(u) for u in status.units],
        "decisions": [
            {"kind": d.kind, "reason": d.reason, "moves": list(d.moves), "seconds_ago": d.seconds_ago}
            for d in status.decisions
        ],
    }


def _unit_rows(unit: UnitState) -> Iterator[tuple[str, ...]]:
    report = unit.report
    load = report.load
    shares = _NONE if load is None else f"{load.prefill_sms}/{load.decode_sms}"
    silent = "out" if unit.out_for_s else f"{unit.silent_s:.1f} s"
    loads = _loads(load)
    name = f"{report.unit_id} (leaving)" if report.is_leaving else report.unit_id
    if not report.models:
        yield (name, shares, *([_NONE] * 10), silent)
    for i, model in enumerate(report.models):
        head = (name, shares) if i == 0 else ("", "")
        figures = loads.get(model.model)
        yield (*head, model.model, _phase(model), *_figures(figures), silent if i == 0 else "")


def _phase(status: ModelStatus) -> str:
    """A sleeper with the host memory that it takes and what waking it should."""
    if status.asleep is None:
        return str(status.phase)
    return f"{status.phase} ({status.asleep.host_bytes / 2**30:.1f} GiB, {status.asleep.wake_s:.1f} s)"


def _figures(load: ModelLoad | None) -> tuple[str, ...]:
    if load is None:
        return (_NONE,) * 8
    return (
        str(load.running),
        str(load.waiting),
        str(load.used_blocks),
        str(load.quota_blocks),
        _share(load.request_attainment),
        _share(load.ttft_attainment),
        _share(load.tbt_attainment),
        f"{load.output_tokens_per_s:.1f}",
    )


def _unit_dict(unit: UnitState) -> dict[str, object]:
    report = unit.report
    loads = _loads(report.load)
    return {
        "unit": report.unit_id,
        "node": report.node,
        "pool": report.pool,
        "report_age_s": unit.silent_s,
        "out_for_s": unit.out_for_s,
        "is_leaving": report.is_leaving,
        "host_memory_bytes": report.host_memory_bytes,
        "prefill_sms": None if report.load is None else report.load.prefill_sms,
        "decode_sms": None if report.load is None else report.load.decode_sms,
        "unpartitioned_reason": None if report.load is None else report.load.unpartitioned_reason,
        "models": [
            {
                "model": s.model,
                "phase": str(s.phase),
                "error": s.error,
                **_load_dict(loads.get(s.model)),
                **_sleep_dict(s.asleep),
            }
            for s in report.models
        ],
    }


def _sleep_dict(asleep: SleepingWeights | None) -> dict[str, object]:
    return {} if asleep is None else {"host_bytes": asleep.host_bytes, "wake_s": asleep.wake_s}


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
        "output_tokens_per_s": load.output_tokens_per_s,
    }


def _loads(load: LoadReport | None) -> dict[str, ModelLoad]:
    return {} if load is None else {m.model: m for m in load.models}


def _share(attainment: float | None) -> str:
    return _NONE if attainment is None else f"{attainment:.1%}"


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    return table
