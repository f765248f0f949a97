"""muxfleet apply, without a cluster."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.cli import main
from deploy.errors import FleetStartError
from deploy.fleet_file.settings import FleetFile
from deploy.local.running_fleets import RunningFleet, announced, take_applied, this_process_started_s
from deploy.serve.fleet_change import FleetChange

FILE = "name: mine\nmodels: [{id: a, source: org/a, slo: {ttft_s: 7.0}}]\n"


class FleetWhoseModelsStayAway:
    def __init__(self, fleet: FleetFile) -> None:
        pass

    def change(self) -> FleetChange:
        return FleetChange(in_place=("model a: slo.ttft_s 2.0 -> 7.0",), restarts=())

    def deploy(self) -> None:
        pass

    def wait_until_ready(self, **_: object) -> None:
        raise FleetStartError(reason="models not ready: a", remedy="allow more with --wait")


@contextmanager
def no_ray(address: str, *, is_verbose: bool) -> Iterator[None]:
    yield


@pytest.fixture
def fleets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("deploy.commands.apply.check_cluster_answers", lambda address: None)
    monkeypatch.setattr("deploy.commands.apply.export_environment", lambda variables: None)
    monkeypatch.setattr("deploy.local.local_ray.joined_ray", no_ray)
    monkeypatch.setattr("deploy.serve.serve_fleet.ServeFleet", FleetWhoseModelsStayAway)
    return tmp_path / "muxfleet" / "fleets"


def test_apply__models_do_not_get_ready_in_time__is_kept_for_a_restart_all_the_same(
    fleets: Path, tmp_path: Path
) -> None:
    """The fleet has changed by then: `up --restart` must not go back to what was before."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FILE)
    running = RunningFleet(
        name="mine",
        url="http://127.0.0.1:8000",
        address="127.0.0.1:1",
        auth_token="t",
        pid=os.getpid(),
        started_s=this_process_started_s(),
    )

    with announced(fleets, running), pytest.raises(SystemExit) as ended:
        main(["apply", str(file)])

    assert ended.value.code == 1
    assert '"ttft_s":7.0' in (take_applied(fleets) or "")
