"""Pictures of this folder's results, made from their files: no GPU is needed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report.pictures import Draw, Row, draw_picture


def draw_report(result: Path, picture: Path, draw: Draw) -> None:
    """`draw` fills the figure with the file's rows."""
    report = json.loads(result.read_text())
    title = f"{report['machine'].get('gpu', '')} {report['machine'].get('date', '')}"
    draw_picture(picture, report["rows"], draw, title=title)


def draw_questions(figure: Any, rows: Sequence[Row]) -> None:
    """Slowdown of each kind of work by the SMs of its lane, and what a lane of so many SMs would explain."""
    speeds = [row for row in rows if row["question"] == "speed"]
    works = list(dict.fromkeys(row["work"] for row in speeds))
    panels = figure.subplots(1, max(1, len(works)), sharey=True, squeeze=False)[0]
    for axes, work in zip(panels, works, strict=False):
        of_work = sorted((row for row in speeds if row["work"] == work), key=lambda row: row["sms"])
        sms = [row["sms"] for row in of_work]
        axes.plot(sms, [row["sms_ratio"] for row in of_work], "k:", label="all SMs / own")
        for name in ("eager", "graph", "beside_other_lane"):
            axes.plot(sms, [row[name] for row in of_work], marker=".", label=name.replace("_", " "))
        axes.set_title(work, fontsize="small")
        axes.set_xlabel("SMs of the lane")
        axes.set_yscale("log")
    panels[0].set_ylabel("time / time on all SMs")
    panels[0].legend(fontsize="small")


def draw_floors(figure: Any, rows: Sequence[Row]) -> None:
    """Time by SMs beside the floor, and what the whole GPU takes over its floors."""
    most = max((row["sms"] for row in rows), default=0)
    by_sms, over = figure.subplots(1, 2)
    for number, measured in enumerate(("decode", "prefill")):
        of_kind = sorted((row for row in rows if row["measured"] == measured), key=lambda row: row["sms"])
        first = next((row for row in of_kind if row["sms"] < most), None)
        same = [r for r in of_kind if first and (r["batch"], r["tokens"]) == (first["batch"], first["tokens"])]
        for field, style in (("seconds", "-"), ("floor_s", ":")):
            label = f"{measured} {'' if field == 'seconds' else 'floor'}"
            values = [1e3 * row[field] for row in same]
            by_sms.plot([row["sms"] for row in same], values, f"C{number}{style}", marker=".", label=label)
    by_sms.set(xlabel="SMs of the lane", ylabel="ms", yscale="log")
    by_sms.legend(fontsize="small")
    whole = [row for row in rows if row["sms"] == most]
    over.barh([f"{r['measured']} {r['batch']} x {r['tokens']}" for r in whole], [r["over_floor"] for r in whole])
    over.axvline(1.0, color="k", linestyle=":")
    over.set_xlabel("time / floor, all SMs")


def draw_bars(figure: Any, rows: Sequence[Row], *, group: str, bar: str, value: str, label: str) -> None:
    """One panel for each `group`, one bar for each `bar`."""
    groups = list(dict.fromkeys(row[group] for row in rows))
    panels = figure.subplots(1, max(1, len(groups)), squeeze=False)[0]
    for axes, name in zip(panels, groups, strict=False):
        chosen = [row for row in rows if row[group] == name]
        axes.barh([str(row[bar]) for row in chosen], [row[value] for row in chosen])
        axes.invert_yaxis()
        axes.set_title(name, fontsize="small")
        axes.set_xlabel(label)
