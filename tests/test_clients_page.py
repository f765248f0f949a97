"""docs/clients.md shows what tests/clients run, and the versions that they run with."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLIENTS = ROOT / "tests" / "clients"
PAGE = (ROOT / "docs" / "clients.md").read_text()


def lines_of(text: str) -> str:
    """Without indentation: the page shows the middle of functions."""
    return "\n".join(line.strip() for line in text.splitlines())


def pinned() -> dict[str, str]:
    """The version of every package that the tests install."""
    files = [ROOT / "constraints.txt", *sorted((CLIENTS / "environments").glob("*.txt"))]
    lines = [line for file in reversed(files) for line in file.read_text().splitlines()]  # our own environment's win
    found = dict(line.split("==") for line in lines if re.match(r"[\w.-]+==[\w.+]+$", line))
    package = json.loads((CLIENTS / "vercel" / "package.json").read_text())
    return found | package["dependencies"]


def test_page__every_snippet__is_what_a_test_runs() -> None:
    files = [*CLIENTS.glob("test_*.py"), *CLIENTS.glob("vercel/*.mjs")]
    sources = [lines_of(file.read_text()) for file in files]
    snippets = re.findall(r"^```(?:python|js|text)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

    assert len(snippets) >= 11
    assert [snippet for snippet in snippets if not any(lines_of(snippet) in source for source in sources)] == []


def test_page__every_client__stands_with_the_version_that_is_tested() -> None:
    shown = dict(re.findall(r"^\| \[([\w-]+)\]\(#[\w-]+\) \| ([\d.]+) \|", PAGE, re.MULTILINE))
    versions = pinned()

    assert len(shown) >= 11
    assert shown == {name: versions[name] for name in shown}
