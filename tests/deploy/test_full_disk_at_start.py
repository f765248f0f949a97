"""What `muxfleet up` writes at its start, on a disk that is full."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from full_disk import full_disk
from rich.console import Console

from deploy.commands.fleet_screen import noted
from deploy.errors import FleetStartError
from deploy.fleet_file.settings import parse_fleet_file
from deploy.local.local_ray import local_ray
from deploy.local.supervisor import Supervisor

FLEET = "models: [{id: m, source: x}]\npools: [{name: p, device: cpu}]"


def test_noted__folder_has_run_full_meanwhile__fleet_serves_and_who_will_not_find_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it loaded may have filled the disk: it is no reason to end it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("deploy.local.local_ray.cluster_address", lambda: "127.0.0.1:1")
    told = io.StringIO()
    fleet = parse_fleet_file(FLEET, name="f", base=Path())
    is_serving = False

    with full_disk(), noted(fleet, "http://127.0.0.1:1", Console(file=told), is_joining=False):
        is_serving = True

    assert is_serving
    assert "`muxfleet apply`, `drain` and `cordon` will not find this fleet" in told.getvalue()
    assert f"{tmp_path}/muxfleet/fleets cannot be written: File too large" in told.getvalue()


def test_local_ray__disk_is_nearly_full__is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself starts, writes what goes wrong to the terminal, and comes to nothing."""
    monkeypatch.setattr("deploy.local.local_ray._SESSIONS", tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=700_000))
    starting = local_ray(num_cpus=1, is_verbose=False, supervisor=Supervisor(stop_s=1.0, tell=print))

    with pytest.raises(FleetStartError, match=rf"{tmp_path} has 0\.7 MB left; .*make room there"):
        starting.__enter__()

    assert not list(tmp_path.iterdir())


def test_local_ray__no_room_for_its_session__is_said_with_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.local.local_ray._SESSIONS", tmp_path)
    starting = local_ray(num_cpus=1, is_verbose=False, supervisor=Supervisor(stop_s=1.0, tell=print))

    with full_disk(), pytest.raises(FleetStartError, match=f"{tmp_path} cannot be written: File too large.*make room"):
        starting.__enter__()

    assert not list(tmp_path.iterdir())
