"""Two fleets of one name on one machine."""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from deploy.commands.fleet_screen import noted, tell_of_namesakes
from deploy.fleet_file.settings import parse_fleet_file
from deploy.local.running_fleets import RunningFleet, announced, process_started_s, this_boot


def told_of(name: str) -> str:
    console = Console(file=io.StringIO())
    tell_of_namesakes(parse_fleet_file(f"name: {name}\nmodels: [{{id: m, source: x}}]", name="f", base=Path()), console)
    return console.file.getvalue()


def test_up__a_fleet_of_that_name_runs_already__is_said_with_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    url = "http://127.0.0.1:8000"
    mine = RunningFleet(
        name="mine",
        url=url,
        address="a",
        auth_token="t",
        pid=os.getpid(),
        boot=this_boot(),
        started_s=process_started_s(),
    )
    with announced(tmp_path / "muxfleet" / "fleets", mine):
        assert told_of("mine").startswith(f"a fleet named 'mine' runs here already ({url}): ")
        assert told_of("other") == ""
    assert told_of("mine") == ""


@pytest.mark.parametrize(("was_told", "times"), [(frozenset[str](), 1), (frozenset({"http://127.0.0.1:8000"}), 0)])
def test_up__a_fleet_of_that_name_came_up_while_this_one_started__is_said_once_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_told: frozenset[str], times: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("deploy.local.local_ray.cluster_address", lambda: "127.0.0.1:1")
    console = Console(file=io.StringIO())
    parent = os.getppid()
    other = RunningFleet(
        name="mine",
        url="http://127.0.0.1:8000",
        address="a",
        auth_token="t",
        pid=parent,
        boot=this_boot(),
        started_s=process_started_s(parent),
    )
    fleet = parse_fleet_file("name: mine\nmodels: [{id: m, source: x}]", name="f", base=Path())

    with (
        announced(tmp_path / "muxfleet" / "fleets", other),
        noted(fleet, "http://127.0.0.1:8001", console, is_joining=False, namesakes=was_told),
    ):
        said = console.file.getvalue()

    assert said.count("a fleet named 'mine' runs here already (http://127.0.0.1:8000)") == times
    assert "8001" not in said
