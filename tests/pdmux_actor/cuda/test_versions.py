"""Which pairs of torch and Triton an installation for GPUs can have: those that the documents say were tried."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
LINES_OF_TORCH, LINES_OF_TRITON = range(9, 20), range(4, 14)


def tried() -> list[tuple[str, str]]:
    """Lines (torch, Triton), such as ("2.13", "3.7")."""
    rows = re.findall(r"^\| (2\.\d+) \| (3\.\d+) \|", (ROOT / "docs" / "gpu.md").read_text(), flags=re.MULTILINE)
    assert rows, "docs/gpu.md has no table of versions"
    return rows


@pytest.mark.parametrize(("package", "place"), [("torch", 0), ("triton", 1)])
def test_cuda_extra__any_line_of_the_package__is_allowed_if_it_was_tried(package: str, place: int) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = {r.name: r.specifier for r in map(Requirement, project["optional-dependencies"]["cuda"])}
    major, lines = ("2", LINES_OF_TORCH) if package == "torch" else ("3", LINES_OF_TRITON)

    allowed = {f"{major}.{line}" for line in lines if f"{major}.{line}.1" in extra[package]}

    assert allowed == {pair[place] for pair in tried()}


def test_constraints__pinned_pair__was_tried() -> None:
    pins = dict(re.findall(r"^(torch|triton)==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))

    assert (pins["torch"], pins["triton"]) in tried()
