"""The section of a report about `muxfleet simulate`."""

from collections.abc import Iterator, Mapping
from typing import Any

from deploy.reports.figure_texts import as_ms, as_number, as_percent
from deploy.reports.page import ReportSection, ReportTable
from deploy.reports.plots import attainment
from deploy.reports.run_figures import distribution_plots, figures_rows


def simulation_section(run: Mapping[str, Any]) -> ReportSection:
    """`run` is what the command wrote: runs, or sweeps over rates, of several deployments."""
    deployments: Mapping[str, Any] = run["deployments"]
    sweeps = {name: d for name, d in deployments.items() if "points" in d}
    runs = {name: d for name, d in deployments.items() if name not in sweeps}
    if not deployments:
        raise ValueError("it has no deployment")
    rates = {
        name: ([p["rate_per_s"] for p in d["points"]], [p["request_attainment"] for p in d["points"]])
        for name, d in sweeps.items()
    }
    tables = [figures_rows({name: d["total"] for name, d in runs.items()}, first="deployment")] if runs else []
    tables += [figures_rows(d["models"], first=f"models of {name}") for name, d in runs.items()]
    tables += [_sweep_table(name, d) for name, d in sweeps.items()]
    tables += [_decisions(name, d) for name, d in runs.items() if d.get("decisions")]
    return ReportSection(
        title=f"Simulated: fleet {run.get('fleet') or 'without a name'}",
        command=run.get("command"),
        texts=(
            f"Requests of {run.get('trace', 'the demand of the fleet file')}, seed {run.get('seed', 0)}.",
            *_cost(runs),
        ),
        warnings=tuple(
            f"{name} does not place {model}: {reason}"
            for name, d in deployments.items()
            for model, reason in d.get("unplaced", {}).items()
        ),
        plots=(*((attainment(rates),) if rates else ()), *distribution_plots(runs)),
        tables=tuple(tables),
        sources=(("the fleet file", run["fleet_file"]),) if run.get("fleet_file") else (),
    )


def _cost(runs: Mapping[str, Any]) -> Iterator[str]:
    for name, run in runs.items():
        if cost := run.get("simulation"):
            yield (
                f"{name}: {cost['units']} units of {cost['gpus']} GPUs together, {cost['virtual_s']:.0f} s of fleet "
                f"time computed in {cost['wall_s']:.1f} s. Times are virtual."
            )


def _sweep_table(name: str, sweep: Mapping[str, Any]) -> ReportTable:
    return ReportTable(
        titles=(f"requests/s, {name}", "in time", "TTFT p99", "TBT p99", "output tokens/s"),
        rows=tuple(
            (
                as_number(point["rate_per_s"]),
                as_percent(point["request_attainment"]),
                as_ms(point["total"]["ttft_s"]["p99"]),
                as_ms(point["total"]["tbt_s"]["p99"]),
                as_number(point["total"]["output_tokens_per_s"]),
            )
            for point in sweep["points"]
        ),
    )


def _decisions(name: str, run: Mapping[str, Any]) -> ReportTable:
    return ReportTable(
        titles=(f"decided, {name}", "what", "why", "moves"),
        rows=tuple((f"{d['time_s']:.1f} s", d["kind"], d["reason"], ", ".join(d["moves"])) for d in run["decisions"]),
        words=4,
    )
