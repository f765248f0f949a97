"""muxfleet demo"""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from deploy.commands.fleet_screen import fleet_on_screen, serve_until_interrupted, with_free_port
from deploy.commands.json_file import FiguresFile, write_json
from deploy.commands.replay_screen import first_errors, replay_with_progress, summary_table, trouble_line
from deploy.commands.terminal import terminal
from deploy.fleet_file.settings import FleetFile, read_fleet_file
from deploy.local.demo_fleet import DemoTrace, generated_trace, recorded_trace, warm_up_trace, write_demo
from traces.replay import replay
from traces.report import Summary, summarize
from traces.timeliness import SloTarget

_REQUEST_TIMEOUT_S = 120.0
_READY_TIMEOUT_S = 180.0


def demo(
    once: Annotated[
        bool, typer.Option("--once", help="Stop after the replay; exit code 1 if a request was lost.")
    ] = False,
    json_file: FiguresFile = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Replay this trace instead.")] = None,
    requests: Annotated[int, typer.Option(help="Requests to replay.", min=1)] = 120,
    seed: Annotated[int, typer.Option(help="Of the generated trace and the prompts.", min=0)] = 0,
    port: Annotated[
        int | None, typer.Option(help="Of the gateway. Default: 8000 or the next free.", min=1, max=65535)
    ] = None,
    write: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Only write checkpoints and fleet file there.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the logs of Ray and of the units.")] = False,
) -> None:
    """Serve three small models on this machine and replay a request trace against them.

    Example: muxfleet demo --once --json demo.json
    """
    console = terminal()
    if write is not None:
        console.print(f"wrote {write_demo(write)}", soft_wrap=True)
        return
    workload = _workload(trace, requests=requests, seed=seed)
    with tempfile.TemporaryDirectory(prefix="muxfleet-demo-") as folder:
        fleet = with_free_port(read_fleet_file(write_demo(Path(folder))), console, asked=port)
        console.print(f"three models with random weights: {', '.join(m.id for m in fleet.models)}")
        with fleet_on_screen(fleet, console, is_verbose=verbose, wait_s=_READY_TIMEOUT_S) as running:
            _warm_up(fleet, url=running.url, seed=seed)
            summary = _replay(console, workload, fleet, url=running.url, seed=seed)
            if json_file is not None:
                write_json(json_file, summary.as_dict())
            if not once:
                serve_until_interrupted(console, running, fleet)
    if summary.total.finished < summary.total.requests:
        raise typer.Exit(1)


def _workload(trace: Path | None, *, requests: int, seed: int) -> DemoTrace:
    if trace is None:
        return generated_trace(requests=requests, seed=seed)
    return recorded_trace(trace, requests=requests, seed=seed)


def _warm_up(fleet: FleetFile, *, url: str, seed: int) -> None:
    trace = warm_up_trace(per_model=4 * fleet.gateway.replicas)
    asyncio.run(replay(trace.records, url=url, timeout_s=_REQUEST_TIMEOUT_S, seed=seed))


def _replay(console: Console, workload: DemoTrace, fleet: FleetFile, *, url: str, seed: int) -> Summary:
    records = workload.trace.records
    console.print(f"\ntrace: {workload.origin}", soft_wrap=True)
    console.print(f"scaled to this machine: {workload.scale}", soft_wrap=True)
    console.print(f"{len(records)} requests in {workload.trace.span_s:.0f} s")
    outcomes = replay_with_progress(console, workload.trace, url=url, timeout_s=_REQUEST_TIMEOUT_S, seed=seed)
    targets = {m.id: SloTarget(ttft_s=m.slo.ttft_s, tbt_s=m.slo.tbt_s) for m in fleet.models}
    summary = summarize(outcomes, targets)
    console.print()
    console.print(summary_table(summary))
    if trouble := trouble_line(summary):
        console.print(trouble, style="red")
        for line in first_errors(outcomes):
            console.print(f"  {line}", soft_wrap=True)
    return summary
