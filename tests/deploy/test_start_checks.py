import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
from full_disk import full_disk

from deploy.cli import main
from deploy.environment import ray_address
from deploy.errors import ClusterUnreachable, FleetStartError, SourceNotFound
from deploy.fleet_file.settings import FleetFile, parse_fleet_file
from deploy.local.local_ray import local_ray
from deploy.local.start_checks import (
    check_cluster_answers,
    check_docstrings,
    check_gpus,
    check_notes_folder,
    check_open_files,
    check_weights,
)
from deploy.local.supervisor import Supervisor


def fleet_of(text: str, base: Path = Path("/")) -> FleetFile:
    return parse_fleet_file(text, name="fleet.yaml", base=base)


def never_asked() -> int:
    raise AssertionError("nobody needs a GPU")


def test_gpus__none_here__say_which_pool_wants_how_many() -> None:
    fleet = fleet_of("{models: [{id: a, source: a}], pools: [{name: big, device: cuda, gpus_per_node: 2}]}")

    with pytest.raises(FleetStartError, match=r"pool 'big' asks for 2 .* this machine has 1 NVIDIA GPUs"):
        check_gpus(fleet, lambda: 1)
    check_gpus(fleet, lambda: 2)


@pytest.mark.parametrize("device", ["cpu", "simulated"])
def test_gpus__fleet_without__are_not_counted(device: str) -> None:
    check_gpus(fleet_of(f"{{models: [{{id: a, source: a}}], pools: [{{device: {device}}}]}}"), never_asked)


def test_docstrings__python_leaves_them_out__is_said_before_ray_is_started_in_vain() -> None:
    with pytest.raises(FleetStartError, match="unset PYTHONOPTIMIZE"):
        check_docstrings(2)
    check_docstrings(1)


@pytest.mark.parametrize("most", [512, 4096, -1])
def test_open_files__fewer_than_haproxy_needs__are_said_before_anything_starts(most: int) -> None:
    with pytest.raises(FleetStartError, match=r"256 files open \(`ulimit -Hn`\).*allow 512 or more"):
        check_open_files(256)
    check_open_files(most)


@pytest.mark.parametrize(
    ("most_processes", "remedy"), [(60, "this user may have 60 processes and threads"), (-1, "run again with -v")]
)
def test_local_ray__ray_gives_up_without_an_error_of_its_own__is_one_line_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_processes: int, remedy: str
) -> None:
    def time_out(**_: object) -> None:
        raise Exception("The current node timed out\nduring startup.")

    monkeypatch.setattr("deploy.local.local_ray._SESSIONS", tmp_path)
    monkeypatch.setattr("deploy.local.local_ray.replace_environment", lambda variables: None)
    monkeypatch.setattr("ray.init", time_out)
    monkeypatch.setattr("os.getuid", lambda: 1000)
    monkeypatch.setattr("resource.getrlimit", lambda what: (most_processes, -1))
    supervisor, killed = Supervisor(stop_s=1.0, tell=print), list[str]()
    monkeypatch.setattr(supervisor, "kill_cluster", lambda: killed.append("all"))
    starting = local_ray(num_cpus=1, is_verbose=False, supervisor=supervisor)

    with pytest.raises(FleetStartError, match=f"not start: The current node timed out during startup.; {remedy}"):
        starting.__enter__()
    assert not list(tmp_path.iterdir())
    assert killed == ["all"], "processes that Ray had started stay"


@pytest.mark.parametrize("place", ["/proc/muxfleet/fleets", "/dev/null/fleets"])
def test_notes_folder__not_writable__is_said_with_the_remedy(place: str) -> None:
    with pytest.raises(FleetStartError, match=f"{place} cannot be written: .*XDG_CACHE_HOME"):
        check_notes_folder(Path(place))


def test_notes_folder__its_disk_is_full__is_said_with_the_remedy(tmp_path: Path) -> None:
    """An empty file can be made there all the same."""
    with full_disk(), pytest.raises(FleetStartError, match=r"cannot be written: File too large; .*make room there"):
        check_notes_folder(tmp_path)


def test_notes_folder__not_there__is_made_for_its_owner(tmp_path: Path) -> None:
    check_notes_folder(tmp_path / "fleets")

    assert (tmp_path / "fleets").stat().st_mode & 0o777 == 0o700
    assert not list((tmp_path / "fleets").iterdir())


@pytest.mark.parametrize(("missing", "what"), [("*.safetensors", "weights"), ("tokenizer*", "tokenizer")])
def test_weights__checkpoint_lacks_a_part__names_it(
    demo_checkpoints: Mapping[str, Path], tmp_path: Path, missing: str, what: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(demo_checkpoints["demo-llama"], folder)
    check_weights(fleet_of(f"models: [{{id: a, source: {folder}}}]"))
    for file in folder.glob(missing):
        file.unlink()

    with pytest.raises(SourceNotFound, match=f"model 'a': .* no {what}"):
        check_weights(fleet_of(f"models: [{{id: a, source: {folder}}}]"))
    check_weights(fleet_of(f"{{models: [{{id: a, source: {folder}}}], pools: [{{device: simulated}}]}}"))


def test_cluster__nobody_listens__is_said_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        port = taken.getsockname()[1]
        with pytest.raises(
            ClusterUnreachable, match=f"no Ray cluster answers at 127.0.0.1:{port}: Connection refused; "
        ):
            check_cluster_answers(f"127.0.0.1:{port}")
        taken.listen()
        check_cluster_answers(f"127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["nowhere", "localhost:", "localhost:x", "ray://head"])
def test_cluster__no_address__is_said(address: str) -> None:
    with pytest.raises(ClusterUnreachable, match=r"is no host:port; .* RAY_ADDRESS is the host:port of a cluster"):
        check_cluster_answers(address)


def test_ray_address__local__is_no_cluster_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would start one each time: `up` one without our settings, that nobody finds or watches; `apply` an empty."""
    monkeypatch.setenv("RAY_ADDRESS", "local")

    assert ray_address() is None


@pytest.mark.parametrize("command", [("drain", "u"), ("cordon", "u"), ("uncordon", "u"), ("apply", "--dry-run")])
def test_commands__ray_address_where_nobody_listens__say_so_at_once_in_one_line(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("models: [{id: a, source: org/a}]")
    arguments = [*command, str(file)] if command[0] == "apply" else list(command)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(SystemExit) as ended:
            main(arguments)

    told = capsys.readouterr().err
    assert ended.value.code == 1
    assert told.startswith(f"muxfleet: no Ray cluster answers at {address}: Connection refused; ")
    assert told.count("\n") == 1
