"""Commands whose fleet ends while they ask it for something."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from noted_fleet import running_here

from deploy.errors import FleetEnded
from deploy.local.fleet_end import ending_with
from deploy.local.running_fleets import announced

PATIENCE_S = 60.0
ENDED = "the fleet 'mine' has been stopped, or was lost, before this was done"
STUBBORN = """
import msgspec, sys, time
from pathlib import Path
from deploy.local.fleet_end import ending_with
from deploy.local.running_fleets import RunningFleet
folder = Path(sys.argv[1])
(file,) = folder.glob("*.json")
with ending_with(msgspec.json.decode(file.read_bytes(), type=RunningFleet), folder):
    file.unlink()
    try:
        time.sleep(600)
    finally:
        time.sleep(600)  # as what waits for a cluster that is gone
"""


def test_ending_with__fleet_is_stopped__what_waits_is_interrupted(tmp_path: Path) -> None:
    fleet = running_here()

    def command() -> None:
        with ending_with(fleet, tmp_path):
            for file in tmp_path.iterdir():
                file.unlink()
            time.sleep(PATIENCE_S)

    with announced(tmp_path, fleet), pytest.raises(FleetEnded, match=ENDED):
        command()


def test_ending_with__fleet_goes_on__nothing_happens(tmp_path: Path) -> None:
    fleet = running_here()
    with announced(tmp_path, fleet), ending_with(fleet, tmp_path):
        time.sleep(1.2)


def test_ending_with__taking_down_waits_too__command_ends_all_the_same(tmp_path: Path) -> None:
    with announced(tmp_path, running_here()):
        run = subprocess.run(
            [sys.executable, "-c", STUBBORN, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE_S
        )

    assert run.returncode == 1
    assert run.stderr.startswith(f"muxfleet: {ENDED}")
