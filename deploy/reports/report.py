"""Writes the page about runs that were simulated, measured or compared. Needs the extra `plots`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.errors import OptionNotUsable, OutputNotWritable
from deploy.reports.figure_texts import as_ms, as_number, as_percent
from deploy.reports.page import ReportPlot, ReportSection, ReportTable, page_html
from deploy.reports.plots import attainment, bars, distributions
from deploy.reports.run_files import NO_RUN
from traces.whole_file import write_whole


def figure_sections(run: Mapping[str, Any]) -> tuple[ReportSection, ...]:
    """`run` is what the command wrote, of one figure or of all."""
    figures = run.get("figures", [run])
    if not figures:
        raise ValueError("it has no figure")
    return tuple(_section(figure, run.get("command") if place == 0 else None) for place, figure in enumerate(figures))


def _section(figure: Mapping[str, Any], command: str | None) -> ReportSection:
    orderings = figure["orderings"]
    missed = [o for o in orderings if not o["holds"]]
    quick = " Fewer requests than the file asks for (--quick)." if figure.get("quick") else ""
    return ReportSection(
        title=f"{figure['experiment']}: {figure['paper']}",
        command=command,
        texts=(
            *((figure["about"],) if figure.get("about") else ()),
            f"{len(orderings) - len(missed)} of {len(orderings)} orderings are as published. "
            f"Computed in {figure['wall_s']:.0f} s, seed {figure['seed']}.{quick}",
        ),
        warnings=tuple(_missed(o) for o in missed),
        plots=tuple(_plots(figure)),
        tables=(_table(figure),),
        notes=tuple(figure["notes"]),
        sources=(("the experiment file", figure["source"]),) if figure.get("source") else (),
    )


def _missed(ordering: Mapping[str, Any]) -> str:
    verdict = "A tie here" if ordering["is_tie"] else "Not here"
    return f"{verdict}: {ordering['case']}, {ordering['metric']}: {ordering['better']} before {ordering['worse']}"


def _plots(figure: Mapping[str, Any]) -> Iterator[ReportPlot]:
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in figure["rows"]:
        groups.setdefault((row["case"], row["metric"]), []).append(row)
    for (case, metric), rows in groups.items():
        simulated, published = ([_drawn(row[key]) for row in rows] for key in ("simulated", "published"))
        if not all(map(math.isnan, simulated)):
            yield bars(f"{case}, {metric}", [row["system"] for row in rows], simulated, published)


def _drawn(value: float | None) -> float:
    return math.nan if value is None else value


def _table(figure: Mapping[str, Any]) -> ReportTable:
    return ReportTable(
        titles=("case", "figure", "system", "simulated", "published", "ratio", "absolute", "in time"),
        rows=tuple(
            (
                *(row["case"], row["metric"], row["system"]),
                *(as_number(row[key]) for key in ("simulated", "published", "ratio", "absolute")),
                as_percent(row["request_attainment"]),
            )
            for row in figure["rows"]
        ),
        words=3,
    )


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
                as_number(point["rate_per_s"]) + (", stopped early" if point.get("stopped_early") else ""),
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


_TIMES: Mapping[str, str] = {"ttft_s": "TTFT", "tbt_s": "TBT", "tpot_s": "TPOT"}


def figures_rows(named: Mapping[str, Mapping[str, Any]], *, first: str) -> ReportTable:
    """One row for each set of figures, as `traces.report.Figures` has them."""
    return ReportTable(
        titles=(
            *(first, "requests", "ended", "TTFT p50", "TTFT p99", "TBT p50", "TBT p99"),
            *("in time", "gaps", "in time/s", "output tokens/s"),
        ),
        rows=tuple((name, *_cells(figures)) for name, figures in named.items()),
    )


def distribution_plots(runs: Mapping[str, Mapping[str, Any]]) -> tuple[ReportPlot, ...]:
    """One plot for each time that any of the runs has points of; files of older versions have none."""
    plots = []
    for key, title in _TIMES.items():
        found = {name: points for name, run in runs.items() if (points := _points(run, key))}
        if found:
            plots.append(distributions(title, found))
    return tuple(plots)


def _points(run: Mapping[str, Any], key: str) -> tuple[list[float], list[float]] | None:
    measured = run.get("distributions") or {}
    seconds = measured.get(key)
    return (seconds, measured["percents"]) if seconds else None


def _cells(figures: Mapping[str, Any]) -> tuple[str, ...]:
    def time_of(key: str, percentile: str) -> str:
        return as_ms((figures.get(key) or {}).get(percentile))

    return (
        as_number(figures["requests"]),
        as_number(figures.get("finished")),
        *(time_of(key, percentile) for key in ("ttft_s", "tbt_s") for percentile in ("p50", "p99")),
        as_percent(figures.get("request_attainment")),
        as_percent(figures.get("tbt_attainment")),
        as_number(figures.get("requests_in_time_per_s")),
        as_number(figures.get("output_tokens_per_s")),
    )


def write_report(path: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """`runs` is by the name of their file. Raises OutputNotWritable and OptionNotUsable: one is no run."""
    sections: list[ReportSection] = []
    for name, run in runs.items():
        try:
            found = _sections(run)
            page_html(name, found)  # before the page is: what a foreign file names may be no text
            sections += found
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise OptionNotUsable(option="RUN.json", value=name, remedy=NO_RUN) from error
    title = sections[0].title if len(sections) == 1 else f"muxfleet: {len(sections)} runs"
    try:
        write_whole(path, page_html(title, sections).encode())
    except OSError as error:
        raise OutputNotWritable(path=str(path), reason=error.strerror or str(error)) from error


def _sections(run: Mapping[str, Any]) -> Sequence[ReportSection]:
    if "deployments" in run:
        return (simulation_section(run),)
    return figure_sections(run) if "orderings" in run or "figures" in run else (_bench_section(run),)


def _bench_section(run: Mapping[str, Any]) -> ReportSection:
    """What `muxfleet bench` wrote."""
    return ReportSection(
        title=f"Measured: {run.get('url') or 'an endpoint'}",
        command=run.get("command"),
        texts=(f"Requests of {run.get('trace', 'a trace')}. Times are real, as the client saw them.",),
        plots=distribution_plots({"all models": run}),
        tables=(figures_rows({**run["models"], "total": run["total"]}, first="model"),),
    )
