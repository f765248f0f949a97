"""Half an hour on a GPU begins with a whole fleet, where that can run."""

import signal
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from fleets import running_fleet
from gpu import half_hour_tree
from gpu.fleet import end_after
from gpu.half_hour import HalfHour
from test_half_hour import DryRun


@pytest.mark.parametrize("state", ["failed", "cut"])
def test_half_hour__fleet_does_not_serve__is_said_first_and_the_rest_runs(tmp_path: Path, state: str) -> None:
    dry = DryRun(fleet=1 if state == "failed" else None)

    HalfHour(tmp_path, dry, now=dry.now).call(total_s=1800, call_s=1800)

    assert dry.names[:3] == ["preflight", "fleet", "tests"]
    assert "- **A fleet under Ray did not serve: fleet.log says why.**" in (tmp_path / "report.md").read_text()


def test_half_hour__no_ray__leaves_the_fleet_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_hour_tree, "find_spec", lambda name: None)
    dry = DryRun()

    HalfHour(tmp_path, dry, now=dry.now).call(total_s=1800, call_s=1800)

    assert dry.names[:2] == ["preflight", "tests"]


def test_fleet__its_time_is_over_while_it_is_ended__is_ended_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of it would keep the GPU."""
    ended: list[str] = []

    class SlowToEnd:
        output = ""

        def __init__(self, *of_fleet: object) -> None:
            pass

        def wait_until_serving(self) -> None:
            end_after(0.2)

        def stop(self) -> None:
            ended.append("stopped")

        def kill(self) -> None:
            time.sleep(0.4)
            ended.append("killed")

    monkeypatch.setattr(running_fleet, "FleetProcess", SlowToEnd)
    before = signal.getsignal(signal.SIGALRM)
    try:
        with running_fleet.running_fleet(tmp_path / "fleet.json"):
            pass
    finally:
        signal.signal(signal.SIGALRM, before)

    assert ended == ["stopped", "killed"]
