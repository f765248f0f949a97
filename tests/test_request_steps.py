"""How many product files a chat request runs through: a budget that benchmarks/hops.py is held to."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MOST_FILES = {"to the wire": 38, "to the engine's inbox": 46, "to the last token": 78, "one decide": 24}


@pytest.fixture(scope="module")
def steps(tmp_path_factory) -> dict:
    report = tmp_path_factory.mktemp("steps") / "steps.json"
    command = [sys.executable, str(ROOT / "benchmarks/hops.py"), "--json", str(report)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(report.read_text())


@pytest.mark.parametrize("phase", list(MOST_FILES))
def test_chat_request__any_phase__runs_through_no_more_files_than_budgeted(steps, phase):
    files = sorted(steps["phases"][phase]["calls"])
    assert len(files) <= MOST_FILES[phase], f"{len(files)} files {phase}; a new one takes the place of another: {files}"


def test_chat_request__any_decision__looks_its_prefix_up_once(steps):
    assert steps["prefix_look_ups"] == 1
