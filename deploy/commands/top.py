"""muxfleet top"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from deploy.commands.fitted_table import FittedTable
from deploy.commands.fleet_tables import gateway_table, short_names
from deploy.commands.gateway_url import DEFAULT_URL, GatewayUrl
from deploy.commands.table_cells import NONE, bar, blocks_cell, fairness_line, fitted, lost_cell, share_cell
from deploy.commands.terminal import terminal
from deploy.inspection.gateway_figures import ModelFigures, RecentFigures, read_gateways
from deploy.inspection.live_events import FollowedFleet
from deploy.inspection.live_fleet import LiveDecision, LiveFleet, LiveModel, LivePool, LiveReplica, LiveUnit


def top(
    url: GatewayUrl = DEFAULT_URL,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1, max=1e6)] = 1.0,
    count: Annotated[int | None, typer.Option(help="Stop after so many looks.", min=1)] = None,
) -> None:
    """Watch models, units, partitions, quotas and attainment of a running fleet until Ctrl-C.

    Example: muxfleet top http://127.0.0.1:8000
    """
    followed = FollowedFleet(url)
    recent = RecentFigures()
    looks = 1
    with Live(_look(url, followed, recent), console=terminal(), auto_refresh=False, screen=False) as live:
        while count is None or looks < count:
            time.sleep(every)
            looks += 1
            live.update(_look(url, followed, recent), refresh=True)


def _look(url: str, followed: FollowedFleet, recent: RecentFigures) -> RenderableType:
    """What is known stays while nobody answers: the fleet may be restarting."""
    reading = read_gateways(url, time.monotonic())  # the stream has no first tokens and gaps
    lately = {} if reading is None else recent.add(reading)
    fleet, trouble = followed.look()
    return _screen(url, fleet, lately, trouble)


def _screen(url: str, fleet: LiveFleet, lately: Mapping[str, ModelFigures], trouble: str) -> RenderableType:
    units = f"{fleet.num_units} units" if fleet.num_units != 1 else "1 unit"
    head = Text(f"{url}  policy {fleet.policy}  {units}  {time.strftime('%H:%M:%S')}")
    if trouble:
        head.append(f"  {trouble}", style="red")
    parts: list[RenderableType] = [head, Text(""), live_model_table(fleet.models), Text("")]
    if lately:
        parts += [gateway_table(lately), Text("")]
    if len(fleet.pools) > 1 or fleet.matching > len(fleet.units):
        parts += [live_pool_table(fleet.pools), Text("")]
    parts.append(live_unit_table(fleet.units))
    if fleet.matching > len(fleet.units):
        parts.append(Text(f"{len(fleet.units)} of {fleet.matching} units, those in trouble first"))
    if (fairness := fairness_line(fleet, None)) is not None:
        parts += [Text(""), Text(fairness)]
    if fleet.decisions:
        parts += [Text(""), live_decision_table(fleet.decisions, newest=3)]
    return Group(*parts, *(Text(line, style="yellow") for line in live_problems(fleet)))


def live_model_table(models: Sequence[LiveModel]) -> FittedTable:
    """Puts those that suffer first."""
    table = fitted(
        *("model", "status", "in time", "waiting", "running", "requests/s", "tokens/s", "of all", "KV blocks of quota"),
        *("lost to others", "units", "asleep on"),
    )
    for model in sorted(models, key=lambda m: not m.suffers):
        table.add_row(
            model.model,
            _loading(model.state, "", model.share_loaded),
            share_cell(model.in_time),
            str(model.waiting),
            str(model.running),
            f"{model.rate_per_s:.2f}",
            f"{model.tokens_per_s:.1f}",
            share_cell(model.token_share),
            blocks_cell(model.used_blocks, model.quota_blocks),
            lost_cell(model.ttft_lost_s, model.tbt_lost_s),
            str(model.units),
            str(model.asleep_on) if model.asleep_on else NONE,
        )
    return table


def live_pool_table(pools: Sequence[LivePool]) -> FittedTable:
    table = fitted("pool", "units", "silent", "with a queue", "running", "waiting", "KV in use", "SMs p/d", "tokens/s")
    for pool in pools:
        table.add_row(
            pool.pool,
            str(pool.units),
            str(pool.silent),
            str(pool.strained),
            str(pool.running),
            str(pool.waiting),
            share_cell(pool.used_blocks / max(1, pool.total_blocks)),
            f"{pool.prefill_sms}/{pool.decode_sms}",
            f"{pool.tokens_per_s:.1f}",
        )
    return table


def live_unit_table(units: Sequence[LiveUnit]) -> FittedTable:
    """One row per model on a unit."""
    names = short_names([u.unit for u in units])
    table = fitted(
        *("unit", "model", "state", "running", "waiting", "KV blocks of quota", "borrowed", "lent", "in time"),
        *("lost to others", "tokens/s", "SMs p/d", "unit is"),
        keys=2,
    )
    for unit in units:
        tail = (f"{unit.prefill_sms}/{unit.decode_sms}", _state(unit))
        if not unit.models:
            table.add_row(names[unit.unit], *([NONE] * 10), *tail)
        for i, replica in enumerate(unit.models):
            name, last = (names[unit.unit], tail) if i == 0 else ("", ("", ""))
            table.add_row(name, *_replica_cells(replica), *last)
    return table


def live_decision_table(decisions: Sequence[LiveDecision], *, newest: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("at", "what", "why"):
        table.add_column(title, overflow="fold")
    for decision in decisions[:newest]:
        at = time.strftime("%H:%M:%S", time.localtime(decision.at_s))
        table.add_row(at, decision.kind, "; ".join((decision.reason, *decision.moves)))
    return table


def live_problems(fleet: LiveFleet) -> Iterator[str]:
    for model in fleet.models:
        if model.suffers:
            yield f"{model.model} suffers: {model.why}"
    for unit in fleet.units:
        if unit.note:
            yield f"unit {unit.unit}: {unit.note}"


def _replica_cells(replica: LiveReplica) -> tuple[str, ...]:
    used = replica.own_blocks + replica.borrowed_blocks
    return (
        replica.model,
        _loading(replica.phase, replica.stage, replica.share_loaded),
        str(replica.running),
        str(replica.waiting),
        blocks_cell(used, replica.quota_blocks),
        str(replica.borrowed_blocks) if replica.borrowed_blocks else NONE,
        str(replica.lent_blocks) if replica.lent_blocks else NONE,
        share_cell(replica.in_time),
        lost_cell(replica.ttft_lost_s, replica.tbt_lost_s),
        f"{replica.tokens_per_s:.1f}",
    )


def _loading(state: str, stage: str, share: float | None) -> str:
    """Draws how far a load is: `loading: reading ███░░░ 52%`."""
    if share is None:
        return state
    return f"{state}: {stage} {bar(share)} {share:.0%}" if stage else f"{state} {bar(share)} {share:.0%}"


def _state(unit: LiveUnit) -> str:
    return f"silent for {unit.silent_s:.1f} s" if unit.state == "silent" else unit.state
