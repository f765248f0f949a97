"""muxfleet trace-decisions"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from deploy.commands.fitted_table import FittedTable
from deploy.commands.gateway_url import DEFAULT_URL, GatewayUrl
from deploy.commands.json_file import writable, write_json
from deploy.commands.terminal import terminal
from deploy.errors import UnitUnknown
from deploy.inspection.fleet_report import fleet_report, unit_decisions
from pdmux_actor.scheduling.bubbles import lane_shares, logged_window
from pdmux_actor.scheduling.chrome_trace import chrome_trace
from pdmux_actor.scheduling.decision import Decision, LogExcerpt

_SHOWN = 50
_EVERYTHING = 4096


def trace_decisions(
    url: GatewayUrl = DEFAULT_URL,
    unit: Annotated[str | None, typer.Option(help="Of this unit only, as `muxfleet status` names it.")] = None,
    last: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The newest N of each unit. Default: what a table shows, all there are for a file.",
            min=1,
            max=_EVERYTHING,
        ),
    ] = None,
    chrome: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a trace for ui.perfetto.dev or chrome://tracing.", callback=writable),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the decisions as JSON.", callback=writable)
    ] = None,
) -> None:
    """Print what the schedulers of a running fleet decided lately, what they expected, and what it took.

    Example: muxfleet trace-decisions http://127.0.0.1:8000 --chrome trace.json
    """
    asked = last if last is not None else _SHOWN if chrome is None and json_file is None else _EVERYTHING
    logs = {u: unit_decisions(url, u, last=asked) for u in _units(url, unit)}
    console = terminal()
    for name, log in logs.items():
        shown = log.decisions if last is not None else log.decisions[-_SHOWN:]
        console.print(_share_table(name, log))
        console.print()
        console.print(_decision_table(shown, log.now_s))
        console.print()
    if chrome is not None:
        write_json(chrome, chrome_trace(logs))
    if json_file is not None:
        write_json(json_file, {"units": {name: _as_dict(log) for name, log in logs.items()}})


def _units(url: str, unit: str | None) -> Sequence[str]:
    known = tuple(u.report.unit_id for u in fleet_report(url).units)
    if unit is None:
        return known
    begun = [u for u in known if u.startswith(unit)]
    if len(begun) == 1:  # as a table shortens it
        return begun
    if unit not in known:
        raise UnitUnknown(unit=unit, known=known)
    return (unit,)


def _share_table(unit: str, log: LogExcerpt) -> FittedTable:
    table = _table(f"{unit}, {_span(log)}", "busy", "bubble", "bubble ratio")
    for lane, share in lane_shares(log.decisions, *logged_window(log.decisions)).items():
        table.add_row(lane.value, f"{share.busy:.1%}", f"{share.bubble:.1%}", f"{share.bubble_ratio:.1%}")
    return table


def _span(log: LogExcerpt) -> str:
    start_s, end_s = logged_window(log.decisions)
    return f"{len(log.decisions)} decisions in {end_s - start_s:.2f} s" if log.decisions else "no decisions yet"


def _decision_table(decisions: Sequence[Decision], now_s: float) -> FittedTable:
    table = _table("launch", "ago", "SMs", "decoding", "KV blocks", "predicted", "measured", "error", "bubble")
    for decision in decisions:
        table.add_row(
            decision.launch,
            f"{now_s - decision.now_s:.3f} s",
            f"{decision.prefill_sms}+{decision.decode_sms}",
            *(_launch_cells(decision) if decision.lane is not None else ("",) * 6),
        )
    return table


def _launch_cells(decision: Decision) -> tuple[str, ...]:
    measured_s = decision.measured_s
    outcome = "running" if measured_s is None else "failed" if decision.failed else _ms(measured_s)
    comparable = measured_s and not decision.failed and decision.predicted_s
    error = f"{decision.predicted_s / measured_s - 1:+.0%}" if measured_s and comparable else ""
    bubble = _ms(decision.bubble_s) if decision.bubble_s > 0 else ""
    decoding = str(decision.num_decoding) if decision.num_decoding else ""
    return decoding, str(decision.used_blocks), _ms(decision.predicted_s), outcome, error, bubble


def _ms(time_s: float) -> str:
    return f"{1e3 * time_s:.2f} ms"


def _table(first: str, *others: str) -> FittedTable:
    table = FittedTable()
    table.add_column(first)
    for title in others:
        table.add_column(title, justify="right")
    return table


def _as_dict(log: LogExcerpt) -> Mapping[str, object]:
    shares = lane_shares(log.decisions, *logged_window(log.decisions))
    return {
        **msgspec.to_builtins(log),
        "lanes": {
            lane.value: {"busy": s.busy, "bubble": s.bubble, "bubble_ratio": s.bubble_ratio}
            for lane, s in shares.items()
        },
    }
