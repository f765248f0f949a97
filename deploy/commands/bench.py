"""muxfleet bench"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from deploy.commands.gateway_url import known_url
from deploy.commands.json_file import FiguresFile, given_command, without_user, writable, write_json
from deploy.commands.replay_screen import replay_with_progress, show_figures, show_trouble
from deploy.commands.terminal import terminal
from deploy.environment import api_key as known_api_key
from deploy.errors import OutputNotWritable
from deploy.inspection.served_models import ServedModel, served_models
from deploy.inspection.workload import fit_lengths, fit_models, fit_rate
from deploy.reports.figure_texts import PERCENTS
from traces.outcome import RequestOutcome, write_outcomes_parquet
from traces.readers.registry import FILES, read_trace
from traces.report import distributions, summarize
from traces.timeliness import SloTarget
from traces.trace import Trace


def bench(
    context: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL", help="OpenAI-compatible URL or host:port.", callback=known_url)],
    trace: Annotated[Path, typer.Option(metavar="FILE", help=f"{FILES}.")],
    requests: Annotated[int | None, typer.Option(help="Replay only the first N.", min=1)] = None,
    rate: Annotated[float | None, typer.Option(help="Mean requests per second.", min=1e-6, max=1e6)] = None,
    rate_scale: Annotated[float, typer.Option(help="Multiply the rate.", min=1e-6, max=1e6)] = 1.0,
    length_scale: Annotated[float, typer.Option(help="Multiply prompt and output lengths.", min=1e-6, max=1e6)] = 1.0,
    model: Annotated[str | None, typer.Option(help="Send everything to this model.")] = None,
    spread_ticks: Annotated[bool, typer.Option(help="Spread requests inside the ticks of rounded times.")] = False,
    slo_ttft: Annotated[
        float | None, typer.Option(help="Target in seconds instead of the fleet's own.", min=1e-6, max=1e6)
    ] = None,
    slo_tbt: Annotated[
        float | None, typer.Option(help="Target in seconds instead of the fleet's own.", min=1e-6, max=1e6)
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds until an unanswered request counts as lost.", min=1e-3, max=1e6)
    ] = 300.0,
    seed: Annotated[int, typer.Option(help="Of prompts and of everything drawn.", min=0)] = 0,
    api_key: Annotated[str | None, typer.Option(help="Sent as bearer token. Default: MUXFLEET_API_KEY.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="PARQUET", help="Write one row per request.", callback=writable)
    ] = None,
    json_file: FiguresFile = None,
) -> None:
    """Replay a trace against an endpoint at its arrival times, never waiting for earlier answers.

    Exit code 1 if a request was lost or failed.

    Example: muxfleet bench http://127.0.0.1:8000 --trace trace.parquet --requests 200 --length-scale 0.1
    """
    console = terminal()
    key = known_api_key(api_key)
    whole = read_trace(trace, limit=requests, jitter="tick" if spread_ticks else "none", seed=seed)
    models = served_models(url, api_key=key)
    timed = fit_rate(whole, rate_per_s=rate, rate_scale=rate_scale, seed=seed)
    named = fit_models(timed.trace, models, only=model, seed=seed)
    fitted = fit_lengths(named.trace, models, length_scale=length_scale)
    console.print(f"{len(whole.records)} requests of {whole.name} in {fitted.trace.span_s:.1f} s")
    for note in (*timed.notes, *named.notes, *fitted.notes):
        console.print(f"  {note}")
    outcomes = _replayed(console, fitted.trace, url=url, timeout_s=timeout, seed=seed, api_key=key)
    used = {r.model for r in fitted.trace.records}
    summary = summarize(outcomes, _targets([m for m in models if m.id in used], ttft_s=slo_ttft, tbt_s=slo_tbt))
    show_figures(console, summary)
    if json_file is not None:
        about = {"command": given_command(context), "url": without_user(url), "trace": fitted.trace.name}
        left = {"not_ended": len(fitted.trace.records) - len(outcomes)}
        found = {**summary.as_dict(), "distributions": distributions(outcomes, PERCENTS)}
        write_json(json_file, {**about, **left, **found})
    if out is not None:
        _write_outcomes(outcomes, out, {"trace": whole.name, "url": without_user(url), "seed": str(seed)})
    show_trouble(console, summary, outcomes)
    if len(outcomes) < len(fitted.trace.records):
        raise KeyboardInterrupt
    if summary.total.lost or summary.total.failed:
        raise typer.Exit(1)


def _replayed(
    console: Console, trace: Trace, *, url: str, timeout_s: float, seed: int, api_key: str | None
) -> list[RequestOutcome]:
    """Returns fewer outcomes than requests where it was interrupted: those that had ended. Raises KeyboardInterrupt:
    none had.
    """
    ended: list[RequestOutcome] = []
    try:
        return replay_with_progress(
            console, trace, url=url, timeout_s=timeout_s, seed=seed, api_key=api_key, on_outcome=ended.append
        )
    except KeyboardInterrupt:
        if not ended:
            raise
        console.print(f"interrupted: {len(ended)} of {len(trace.records)} requests had ended", style="red")
        return sorted(ended, key=lambda outcome: outcome.index)


def _targets(models: list[ServedModel], *, ttft_s: float | None, tbt_s: float | None) -> dict[str, SloTarget]:
    """A model without a target of its own is judged only if both are given."""
    targets: dict[str, SloTarget] = {}
    for model in models:
        own = model.slo
        ttft = ttft_s if ttft_s is not None or own is None else own.ttft_s
        tbt = tbt_s if tbt_s is not None or own is None else own.tbt_s
        if ttft is not None and tbt is not None:
            targets[model.id] = SloTarget(ttft_s=ttft, tbt_s=tbt)
    return targets


def _write_outcomes(outcomes: list[RequestOutcome], path: Path, metadata: dict[str, str]) -> None:
    try:
        write_outcomes_parquet(outcomes, path, metadata)
    except OSError as error:
        raise OutputNotWritable(path=str(path), reason=error.strerror or str(error)) from error
