"""`muxfleet profile --from-run`: what a short run of an endpoint says of the engine behind it."""

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from deploy.commands.fitted_table import FittedTable
from deploy.commands.told_progress import ToldProgress
from deploy.environment import api_key as known_api_key
from deploy.errors import OptionNotUsable
from deploy.fleet_file.settings import read_fleet_file
from deploy.profiling.endpoint_profile import EndpointClient, FittedRun, fit_endpoint, served_model
from profiler.profile import Profile
from profiler.rate_fit import RateFit
from profiler.served_steps import Rung
from traces.outcome import RequestOutcome


def profile_of_run(
    console: Console,
    url: str,
    file: Path | None,
    *,
    pool: str | None,
    model: str | None,
    api_key: str | None,
    budget_s: float,
) -> Profile:
    """Raises OptionNotUsable, BadParameter, SourceNotFound, UnsupportedModel."""
    if file is None:
        remedy = "it takes a fleet file, whose pool says the GPU and whose model says the shape"
        raise OptionNotUsable(option="--from-run", value=url, remedy=remedy)
    asked = served_model(read_fleet_file(file), pool, model)
    client = EndpointClient(url=url, model=asked.name, api_key=known_api_key(api_key))
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with ToldProgress(*columns, console=console) as bars:
        task = bars.add_task(asked.name, total=None)

        def send(rung: Rung) -> list[RequestOutcome]:
            bars.update(task, description=f"{asked.name}: {rung.clients} x {rung.prompt_tokens} tokens")
            return list(client(rung))

        found = fit_endpoint(asked, send, budget_s=budget_s)
    console.print(_table(found))
    if found.is_seen_once:
        console.print(
            f"Most launches were seen once in {budget_s:g} s: a larger --budget tells them from what disturbs them."
        )
    return found.profile(url)


def _table(found: FittedRun) -> FittedTable:
    table = FittedTable(title=f"{found.before.device.name}, {found.num_gpus} GPU, seen by one client")
    table.add_column("")
    for title in ("assumed", "fitted"):
        table.add_column(title, justify="right")
    before, after = (_figures(fit) for fit in (found.before, found.after))
    for name, was in before.items():
        table.add_row(name, was, after[name])
    judged = "launches kept from fitting" if found.held_out else "all launches"
    table.add_row(f"mean error, {judged}", *(f"{error:.1%}" for error in found.errors()))
    return table


def _figures(fit: RateFit) -> dict[str, str]:
    return {
        "matrix rate, TFLOP/s": f"{fit.device.peak_flops_per_s / 1e12:.1f}",
        "bandwidth, GB/s": f"{fit.device.memory_bandwidth_bytes_per_s / 1e9:.0f}",
        "host, ms a step": f"{fit.host_s * 1e3:.2f}",
        "way, ms a first token": f"{fit.client_s * 1e3:.2f}",
    }
