"""Sections of a report about `muxfleet compare`: a published figure each."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from deploy.reports.figure_texts import as_number, as_percent
from deploy.reports.page import ReportPlot, ReportSection, ReportTable
from deploy.reports.plots import bars


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
