"""muxfleet apply, without a cluster."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from full_disk import full_disk
from noted_fleet import running_here

from deploy.cli import main
from deploy.errors import FleetStartError
from deploy.fleet_file.settings import FleetFile
from deploy.local.running_fleets import announced, take_applied
from deploy.serve.fleet_change import FleetChange

FILE = "name: mine\nmodels: [{id: a, source: org/a, slo: {ttft_s: 7.0}}]\n"


class FleetWhoseModelsStayAway:
    def __init__(self, fleet: FleetFile) -> None:
        pass

    def change(self) -> FleetChange:
        return FleetChange(in_place=("model a: slo.ttft_s 2.0 -> 7.0",), restarts=())

    def deploy(self) -> None:
        pass

    def wait_until_ready(self, **_: object) -> Sequence[str]:
        raise FleetStartError(
            reason="models not ready: a", remedy="run again with -v for the logs, or allow more with --wait"
        )


@contextmanager
def alone(fleet: str) -> Iterator[None]:
    yield


@contextmanager
def no_ray(address: str, *, is_verbose: bool) -> Iterator[None]:
    yield


@pytest.fixture
def fleets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("deploy.commands.apply.check_cluster_answers", lambda address: None)
    monkeypatch.setattr("deploy.commands.apply.replace_environment", lambda variables: None)
    monkeypatch.setattr("deploy.local.local_ray.joined_ray", no_ray)
    monkeypatch.setattr("deploy.serve.serve_fleet.ServeFleet", FleetWhoseModelsStayAway)
    monkeypatch.setattr("deploy.serve.sole_change.sole_change", alone)
    return tmp_path / "muxfleet" / "fleets"


def test_apply__models_do_not_get_ready_in_time__is_kept_for_a_restart_all_the_same(
    fleets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fleet has changed by then: `up --restart` must not go back to what was before."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FILE)
    with announced(fleets, running_here()), pytest.raises(SystemExit) as ended:
        main(["apply", str(file)])

    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert "the change was made and the fleet runs, but models not ready: a; `muxfleet status`" in told
    assert "-v" not in told
    assert '"ttft_s":7.0' in (take_applied(fleets) or "")


def test_apply__change_cannot_be_kept_for_a_restart__is_made_and_said(
    fleets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fleet is another one by then: who applied must hear what became of its models, too."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FILE)
    with announced(fleets, running_here()), full_disk(), pytest.raises(SystemExit) as ended:
        main(["apply", str(file)])

    out, err = capsys.readouterr()
    assert ended.value.code == 1
    assert f"would go back to what was before: {fleets} cannot be written: File too large; make room there" in out
    assert "the change was made and the fleet runs, but models not ready: a" in err


def run(*arguments: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


def test_apply__cluster_at_ray_address__judges_and_makes_the_change_while_no_other_can(
    fleets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it might restart what nobody said it may: what another has changed meanwhile."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FILE)
    events: list[str] = []

    @contextmanager
    def alone(fleet: str) -> Iterator[None]:
        events.append(f"alone with {fleet}")
        yield
        events.append("no more")

    class RecordedFleet(FleetWhoseModelsStayAway):
        def change(self) -> FleetChange:
            events.append("judged")
            return super().change()

        def deploy(self) -> None:
            events.append("made")

        def wait_until_ready(self, **_: object) -> Sequence[str]:
            events.append("waited")
            return ()

    monkeypatch.setattr("deploy.serve.sole_change.sole_change", alone)
    monkeypatch.setattr("deploy.serve.serve_fleet.ServeFleet", RecordedFleet)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")

    assert not run("apply", str(file))
    assert events == ["alone with mine", "judged", "made", "no more", "waited"]


def test_apply__a_model_does_not_load_and_the_port_is_another__ends_with_1_and_says_both(
    fleets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that goes on must not take the change for made: it ended with 0, and `nothing changes` of the port."""

    class BrokenModel(FleetWhoseModelsStayAway):
        def wait_until_ready(self, **_: object) -> Sequence[str]:
            return ["model 'a' does not load: its tokenizer is damaged"]

    monkeypatch.setattr("deploy.serve.serve_fleet.ServeFleet", BrokenModel)
    file = tmp_path / "fleet.yaml"
    file.write_text(FILE + "gateway: {port: 21999}\n")
    with announced(fleets, running_here()), pytest.raises(SystemExit) as ended:
        main(["apply", str(file)])

    assert ended.value.code == 1
    said = capsys.readouterr()
    assert "the fleet runs, but model 'a' does not load: its tokenizer is damaged; `muxfleet status`" in said.err
    assert f"it serves at {running_here().url}; gateway.port 21999 counts when it is started" in said.out
    assert "applied in" not in said.out


@pytest.mark.parametrize("command", ["apply", "cordon"])
def test_commands__user_has_a_token_of_another_ray_cluster__go_to_the_fleet_with_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The fleet's cluster refused them: as of one that does not answer."""
    tokens: list[tuple[str, str]] = []

    def join(address: str, *, is_verbose: bool) -> None:
        tokens.append((os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"]))
        raise KeyboardInterrupt

    own = {"XDG_CACHE_HOME": str(tmp_path), "RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "of-another"}
    others = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    monkeypatch.setattr(os, "environ", others | own)
    monkeypatch.setattr("deploy.commands.apply.check_cluster_answers", lambda address: None)
    monkeypatch.setattr("deploy.commands.joined_fleet.check_cluster_answers", lambda address: None)
    monkeypatch.setattr("deploy.local.local_ray.joined_ray", join)
    file = tmp_path / "fleet.yaml"
    file.write_text(FILE)
    fleet = running_here()
    with announced(tmp_path / "muxfleet" / "fleets", fleet):
        assert run(command, str(file) if command == "apply" else "a-unit") == 130

    assert tokens == [("token", fleet.auth_token)]
