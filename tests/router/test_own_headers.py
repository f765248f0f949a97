"""docs/api.md has a row for each of our headers, and browsers' pages see those of responses."""

import re
from pathlib import Path

from router.http.app import SHOWN_HEADERS

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"x-muxfleet-[a-z-]*[a-z]")


def rows(title: str) -> set[str]:
    """The headers in the first column of the table with that title."""
    page = (ROOT / "docs" / "api.md").read_text()
    table = page[page.index(f"| {title} |") :].split("\n\n")[0]
    return {name for row in table.splitlines() for name in NAME.findall(row.split("|")[1])}


def in_the_source() -> set[str]:
    files = (p for p in (ROOT / "router").rglob("*.py") if p.name != "app.py")
    return {name for file in files for name in NAME.findall(file.read_text())}


def test_headers__any_in_the_source__have_a_row_in_the_page_of_the_api() -> None:
    assert in_the_source() == rows("Header") | rows("Header of a response")


def test_headers__of_responses__are_shown_to_pages_of_browsers() -> None:
    shown = {name for name in SHOWN_HEADERS if NAME.fullmatch(name)}
    assert shown == rows("Header of a response")
