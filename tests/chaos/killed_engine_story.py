"""The story of an engine that was killed under load, as `muxfleet incident` prints it and the runbook shows it."""

import re
from pathlib import Path

RUNBOOK = Path(__file__).parents[2] / "docs" / "runbook.md"
_BLOCK = re.compile(r"(<!-- incident: made by a test -->\n```\n)(.*?)(```\n)", re.DOTALL)
_SUMMARY = re.compile(
    r"\d{4}-\d\d-\d\d [0-9:]{8} to (?:\d{4}-\d\d-\d\d )?[0-9:]{8} UTC: 1 unit lost, 1 unit restarted,"
    r"(?: \d+ moves?,)? (\d+) requests? went on elsewhere(?:, \d+ answers? late)?"
)
_LINE = re.compile(r"[0-9:]{8}\.\d{3}  (\w+) +(?:([^:]+): )?(.*)")


def shown_in_runbook() -> str:
    found = _BLOCK.search(RUNBOOK.read_text())
    assert found is not None, "the runbook has lost its incident"
    return found[2]


def show_in_runbook(told: str) -> None:
    RUNBOOK.write_text(_BLOCK.sub(lambda found: found[1] + told + found[3], RUNBOOK.read_text()))


def check_story(told: str) -> int:
    """That it tells of one unit: why it died, what it held, who went on elsewhere, and who came in its place. Returns
    how many requests went on.
    """
    first, *rest = told.splitlines()
    summary = _SUMMARY.fullmatch(first)
    assert summary is not None, first
    lines = [_LINE.fullmatch(line) for line in rest]
    assert all(lines), told
    events = [(found[1], found[2] or "", found[3]) for found in lines if found is not None]
    times = [line[:12] for line in rest]
    assert times == sorted(times)
    kinds = [kind for kind, _, _ in events]
    (lost,) = [(where, text) for kind, where, text in events if kind == "unit_lost"]
    moved = [(where, text) for kind, where, text in events if kind == "request_moved"]
    unit, why = lost
    assert "SIGKILL" in why
    assert "it held" in why
    assert moved
    assert all(where.split()[0] == unit and "lost its unit" in text for where, text in moved)
    assert "unit_lost" not in kinds[: kinds.index("request_moved")], "clients notice first"
    assert "model_ready" in kinds[kinds.index("request_moved") :], "what it held is ready elsewhere"
    assert "unit_restarted" in kinds[kinds.index("request_moved") :]  # also before the lost one is silent for too long
    return int(summary[1])
