"""muxfleet simulate"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from deploy.commands.asked_requests import AskedRequests
from deploy.commands.json_file import FiguresFile, PlotFolder, given_command, write_json
from deploy.commands.simulation_screen import (
    RunProgressed,
    SimulationProgress,
    decisions_table,
    figures_table,
    node_use_line,
    outcome_line,
    sweep_lines,
    sweep_table,
)
from deploy.commands.table_cells import few_requests_line
from deploy.commands.terminal import terminal
from deploy.compilation.compiled_modules import runs_compiled
from deploy.errors import OptionNotUsable
from deploy.fleet_file.settings import FleetFile, check_sources, read_fleet_file, read_text
from deploy.reports.figure_texts import PERCENTS
from deploy.simulation.control import LoadTimes
from deploy.simulation.deployments import BASELINES, Deployment, baseline_named, deploy_fleet
from deploy.simulation.divided_run import run_fleet_divided
from deploy.simulation.fleet_outcome import FleetOutcome
from deploy.simulation.rates_ahead import RatesAhead
from deploy.simulation.runs import OnProgress, RunOptions, Sweep, is_hopeless, points_of, run_fleet, sweep_rates
from deploy.simulation.streams import RequestStream
from deploy.simulation.workers import Tell, Workers
from pdmux_actor.scheduling.policies.registry import POLICIES
from router.limits import GatewayLimits
from traces.readers.registry import FILES

if TYPE_CHECKING:
    from deploy.simulation.plots import FleetPlots

_LOAD_GB_PER_S = 2.0
_MOST_TOLD = 8  # models that are not placed
_LONG_S = 30.0  # of a run that would be worth to compile for


def simulate(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FLEET", help="Fleet file.")],
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"{FILES}. Default: the fleet file's demand."),
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(POLICIES)}; repeat to compare. Default: the file's.")
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(help=f"Compare with {', '.join(BASELINES)}, or a split like 2P1D:50 (GB/s); repeat for several."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(help="Nodes of every pool, instead of the fleet file's.", min=1, max=10_000)
    ] = None,
    requests: Annotated[int | None, typer.Option(help="Only the first N.", min=1)] = None,
    duration: Annotated[
        float | None, typer.Option(help="Only what arrives in the first seconds.", min=0.001, max=1e9)
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Mean requests per second.", min=1e-6, max=1e6)] = None,
    sweep: Annotated[
        str | None, typer.Option(metavar="rate=A,B,...", help="Find the goodput: try rates, bisect at the first miss.")
    ] = None,
    spread_ticks: Annotated[bool, typer.Option(help="Spread requests inside the ticks of rounded times.")] = False,
    control_loop: Annotated[
        bool, typer.Option("--control-loop", help="Models move, and nodes come and go, as the file says.")
    ] = False,
    load_speed: Annotated[
        float | None,
        typer.Option(metavar="GB/S", help="With --control-loop: of weights that move. Default: 2.", min=0.001, max=1e6),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything drawn.", min=0)] = 0,
    jobs: Annotated[int, typer.Option(help="Policies, rates or parts of a fleet at once.", min=1, max=1024)] = 1,
    json_file: FiguresFile = None,
    plot: PlotFolder = None,
) -> None:
    """Run a fleet in virtual time: its scheduler, router and placement on a latency model. No GPU, no Ray.

    Example: muxfleet simulate examples/simulated-8gpu.yaml --duration 120 --policy mux --policy chunked_prefill
    """
    _refuse_contradictions(context)
    console, fleet = terminal(), _with_nodes(read_fleet_file(file), nodes)
    check_sources(fleet)
    asked = _asked(context)
    stream = asked.stream(fleet)
    deployments = [replace(d, seed=seed) for d in _deployments(fleet, policy, baseline)]
    loads = _loads(load_speed, deployments) if control_loop else None
    console.print("\n".join(asked.told(stream)), soft_wrap=True)
    session = _Session(console, fleet, stream, asked, None if plot is None else _plotter(plot), loads)
    try:
        session.find(deployments, jobs)
    finally:  # a run that is cut off leaves the figures of what has ended
        if json_file is not None and session.report:
            found = {"fleet": fleet.name, "trace": stream.name, "seed": seed, "deployments": session.report}
            write_json(json_file, {"command": given_command(context), **found, "fleet_file": read_text(file)})
    session.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Holds what one deployment did: a run, or a sweep."""

    name: str
    unplaced: Mapping[str, str]
    num_units: int
    num_gpus: int
    found: FleetOutcome | Sweep
    wall_s: float


class _Session:
    """Runs deployments of one fleet on one stream and shows each as it ends, in their order. `report` has, for JSON,
    what those that have ended found.
    """

    def __init__(
        self,
        console: Console,
        fleet: FleetFile,
        stream: RequestStream,
        asked: AskedRequests,
        plotter: "FleetPlots | None",
        loads: LoadTimes | None,
    ) -> None:
        """Prepares a run; with `loads` the control loop moves models."""
        self._console = console
        self._fleet = fleet
        self._stream = stream
        self._asked = asked
        self._plotter = plotter
        self._loads = loads
        self.report: dict[str, object] = {}
        self._started_s = time.monotonic()
        self._first: _Found | None = None
        self._options = RunOptions(
            limits=GatewayLimits(max_queued=fleet.gateway.max_queued_requests, hold_s=fleet.gateway.hold_s),
            gateways=fleet.gateway.replicas,
            sample_partitions=plotter is not None,
        )

    def find(self, deployments: list[Deployment], jobs: int) -> None:
        """Runs each once, or a sweep of each."""
        with SimulationProgress(self._console) as progress, Workers(jobs, progress.hear) as workers:
            if len(deployments) == 1:  # a sweep's rates, or parts of the fleet, are what can be run at once
                (only,) = deployments
                self.report[only.name] = self._shown(self._run_or_sweep(only, progress.hear, workers))
                return
            tasks = {d.name: workers.submit(partial(self._run_or_sweep, d)) for d in deployments}
            for name, task in tasks.items():
                self.report[name] = self._shown(task.result())

    def finish(self) -> None:
        """Writes plots, and says how the same would take less time, where it took long."""
        for path in self._plotter.write() if self._plotter is not None else ():
            self._console.print(f"wrote {path}")
        if time.monotonic() - self._started_s >= _LONG_S and not runs_compiled():
            advice = "`muxfleet compile`, once, makes this take about half the time"
            self._console.print(advice, style="dim", soft_wrap=True)

    def _run_or_sweep(
        self,
        deployment: Deployment,
        tell: Tell[RunProgressed],
        workers: Workers[RunProgressed] | None = None,
    ) -> _Found:
        """`workers` are for a sweep's rates, beside each other; a single run is divided among as many processes."""
        deployed = deploy_fleet(self._fleet, deployment, loads=self._loads)
        started_s = time.perf_counter()

        def as_found(found: FleetOutcome | Sweep) -> _Found:
            return _Found(
                name=deployment.name,
                unplaced=dict(deployed.unplaced),
                num_units=deployed.num_units,
                num_gpus=deployed.num_gpus,
                found=found,
                wall_s=time.perf_counter() - started_s,
            )

        if not self._asked.swept_per_s:
            outcome = run_fleet_divided(
                deployed,
                self._stream,
                self._options,
                jobs=1 if workers is None else workers.jobs,
                on_progress=self._progressed(deployment.name, self._stream, tell),
                on_interrupt=lambda outcome: self._keep_part(as_found(outcome), outcome),
            )
            return as_found(outcome)

        def run_at(rate_per_s: float, tell: Tell[RunProgressed]) -> FleetOutcome:
            stream = self._asked.swept(self._fleet, self._stream, rate_per_s)
            progressed = self._progressed(f"{deployment.name} at {rate_per_s:.3g}/s", stream, tell)
            return run_fleet(deployed, stream, self._options, give_up=is_hopeless, on_progress=progressed)

        return as_found(self._swept(deployment.name, RatesAhead(workers or Workers(1, tell), run_at)))

    def _keep_part(self, found: _Found, outcome: FleetOutcome) -> None:
        """Shows what an interrupted run has found, and keeps it for JSON: nothing where no request had ended."""
        if ended := outcome.total().requests:
            self.report[found.name] = {
                **self._shown(replace(found, name=f"{found.name}, interrupted")),
                "interrupted": True,
            }
            so_far = f"interrupted: {ended} of {self._stream.count} requests had ended"
            self._console.print(f"{so_far}; these are their figures alone", style="red", soft_wrap=True)

    def _swept(self, name: str, ahead: RatesAhead) -> Sweep:
        """Keeps the rates that have ended where it is interrupted: as a sweep that did not go on from there."""
        ended: dict[float, FleetOutcome] = {}

        def outcome(rate_per_s: float) -> FleetOutcome:
            return ended.setdefault(rate_per_s, ahead.outcome(rate_per_s))

        try:
            return sweep_rates(self._asked.swept_per_s, outcome, ahead=ahead.want)
        except KeyboardInterrupt:
            if ended:
                cut = replace(sweep_rates(list(ended), ended.__getitem__, refinements=0), points=points_of(ended))
                self._console.print(sweep_table(f"{name}, interrupted", cut))
                self.report[name] = {**_sweep_dict(cut, {}), "interrupted": True}
            raise

    def _progressed(self, about: str, stream: RequestStream, tell: Tell[RunProgressed]) -> OnProgress:
        return lambda ended, virtual_s: tell(
            RunProgressed(run=about, requests=stream.count, ended=ended, virtual_s=virtual_s)
        )

    def _shown(self, found: _Found) -> dict[str, object]:
        for model, reason in islice(found.unplaced.items(), _MOST_TOLD):
            self._console.print(f"not placed: {model}: {reason}", style="red", soft_wrap=True)
        if (more := len(found.unplaced) - _MOST_TOLD) > 0:
            self._console.print(f"not placed: {more} more models (--json names all)", style="red")
        first = self._first = self._first or found
        if found.num_gpus != first.num_gpus:
            gpus = f"{found.name} has {found.num_gpus} GPUs, {first.name} {first.num_gpus}"
            self._console.print(f"{gpus}: they do not compare as they stand", style="red", soft_wrap=True)
        if isinstance(found.found, FleetOutcome):
            return self._shown_run(found, found.found)
        self._console.print(sweep_table(found.name, found.found))
        for line in sweep_lines(found.found):
            self._console.print(line, style="dim", soft_wrap=True)
        if self._plotter is not None:
            self._plotter.add_sweep(found.name, found.found)
        return _sweep_dict(found.found, found.unplaced)

    def _shown_run(self, found: _Found, outcome: FleetOutcome) -> dict[str, object]:
        self._console.print(figures_table(found.name, outcome))
        if few := few_requests_line({model: s.finished for model, s in outcome.models.items()}):
            self._console.print(few, style="dim", soft_wrap=True)
        if cut := outcome.total().cut:
            requests = "1 request" if cut == 1 else f"{cut} requests"
            self._console.print(f"{requests} cut to their model's context on these units")
        if self._loads is not None:
            decided = decisions_table(outcome) if outcome.decisions else "the control loop decided nothing"
            self._console.print(decided)
        if outcome.node_use is not None:
            self._console.print(node_use_line(outcome.node_use))
        self._console.print(outcome_line(outcome, found.wall_s), style="dim")
        if self._plotter is not None:
            self._plotter.add_run(found.name, outcome)
        return _run_dict(found, outcome)


def _refuse_contradictions(context: typer.Context) -> None:
    """Raises OptionNotUsable."""
    given = context.params
    if given["sweep"] is not None and given["rate"] is not None:
        remedy = "--sweep tries the rates that it names; drop one"
        raise OptionNotUsable(option="--rate", value=given["rate"], remedy=remedy)
    if given["spread_ticks"] and given["trace"] is None:
        raise OptionNotUsable(option="--spread-ticks", value=True, remedy="it goes with --trace, which has ticks")
    if given["load_speed"] is not None and not given["control_loop"]:
        remedy = "models move with --control-loop only"
        raise OptionNotUsable(option="--load-speed", value=given["load_speed"], remedy=remedy)


def _asked(context: typer.Context) -> AskedRequests:
    """Raises OptionNotUsable: the sweep names no rates."""
    given = context.params
    return AskedRequests(
        trace=given["trace"],
        requests=given["requests"],
        duration_s=given["duration"],
        rate_per_s=given["rate"],
        swept_per_s=() if given["sweep"] is None else _rates(given["sweep"]),
        spread_ticks=given["spread_ticks"],
        seed=given["seed"],
    )


def _plotter(folder: Path) -> "FleetPlots":
    """Raises OptionNotUsable: the extra is not installed."""
    try:
        from deploy.simulation.plots import FleetPlots  # matplotlib is an extra, and takes a second to import
    except ModuleNotFoundError as error:
        remedy = f"{error.name} is not installed; pip install 'muxfleet[plots]'"
        raise OptionNotUsable(option="--plot", value=folder, remedy=remedy) from error
    return FleetPlots(folder)


def _loads(gb_per_s: float | None, deployments: list[Deployment]) -> LoadTimes:
    """Raises OptionNotUsable: one of them is divided into several engines."""
    for divided in (d for d in deployments if d.fleet_mode is not None):
        remedy = "leave out --control-loop: units of several engines keep their models"
        raise OptionNotUsable(option="--baseline", value=divided.name, remedy=remedy)
    return LoadTimes(bytes_per_s=1e9 * (gb_per_s or _LOAD_GB_PER_S))


def _deployments(fleet: FleetFile, policies: list[str] | None, baselines: list[str] | None) -> list[Deployment]:
    for name in policies or []:
        if name not in POLICIES:
            raise OptionNotUsable(option="--policy", value=name, remedy=POLICIES.remedy(name))
    chosen = policies or [fleet.engine.policy]
    return [*(Deployment(name=p, policy=p) for p in chosen), *(baseline_named(name, fleet) for name in baselines or [])]


def _with_nodes(fleet: FleetFile, nodes: int | None) -> FleetFile:
    if nodes is None:
        return fleet
    pools = tuple(
        p.model_copy(update={"nodes": p.nodes.model_copy(update={"min": nodes, "max": None}), "scaling": None})
        for p in fleet.pools
    )
    return fleet.model_copy(update={"pools": pools})


def _rates(text: str) -> list[float]:
    """Raises OptionNotUsable."""
    name, _, values = text.partition("=")
    remedy = "write rate=1,2,4,8"
    if name.strip() != "rate":
        raise OptionNotUsable(option="--sweep", value=text, remedy=remedy)
    try:
        rates = [float(value) for value in values.split(",")]
    except ValueError as error:
        raise OptionNotUsable(option="--sweep", value=text, remedy=remedy) from error
    if not all(0 < r < float("inf") for r in rates):
        raise OptionNotUsable(option="--sweep", value=text, remedy="give finite rates above 0")
    return rates


def _run_dict(found: _Found, outcome: FleetOutcome) -> dict[str, object]:
    return {
        "models": {m: s.figures(outcome.duration_s).as_dict() for m, s in outcome.models.items()},
        "total": outcome.total().figures(outcome.duration_s).as_dict(),
        "distributions": outcome.total().distributions(PERCENTS),
        "unplaced": found.unplaced,
        "decisions": [
            {"time_s": outcome.decided_s(d), "kind": d.kind, "reason": d.reason, "moves": list(d.moves)}
            for d in reversed(outcome.decisions)
        ],
        "nodes": None if outcome.node_use is None else asdict(outcome.node_use),
        "simulation": {
            "units": found.num_units,
            "gpus": found.num_gpus,
            "virtual_s": outcome.duration_s,
            "wall_s": found.wall_s,
            "events": outcome.events,
            "steps": outcome.steps,
        },
    }


def _sweep_dict(sweep: Sweep, unplaced: Mapping[str, str]) -> dict[str, object]:
    return {
        "goodput_per_s": sweep.goodput_per_s,
        "goodput_requests_per_s": sweep.goodput_requests_per_s,
        "points": [
            {
                "rate_per_s": p.rate_per_s,
                "slo_attainment": p.attainment,
                "request_attainment": p.request_attainment,
                "stopped_early": p.outcome.gave_up,
                "total": p.outcome.total().figures(p.outcome.duration_s).as_dict(),
            }
            for p in sweep.points
        ],
        "unplaced": unplaced,
    }
