import errno
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest

from deploy.errors import FleetUnreachable
from deploy.fleet_file.settings import FleetFile
from deploy.local.running_fleets import (
    RunningFleet,
    announced,
    find_fleet,
    keep_applied,
    process_started_s,
    running_fleets,
    take_applied,
    this_boot,
)
from deploy.serve.fleet_change import change_between, only_at_start
from deploy.serve.render import serve_config

BASE = {"models": [{"id": "a", "source": "/a"}, {"id": "b", "source": "/b"}]}


def applications(fleet: dict[str, object]) -> dict[str, dict[str, object]]:
    return {a["name"]: a for a in serve_config(FleetFile.model_validate(fleet))["applications"]}


def running(name: str = "fleet", pid: int | None = None, started_s: float | None = None) -> RunningFleet:
    return RunningFleet(
        name=name,
        url="http://127.0.0.1:8000",
        address="127.0.0.1:1",
        auth_token="secret",
        pid=os.getpid() if pid is None else pid,
        boot=this_boot(),
        started_s=process_started_s() if started_s is None else started_s,
    )


def test_change__same_file__is_nothing() -> None:
    change = change_between(applications(BASE), applications(BASE))

    assert (change.in_place, change.restarts) == ((), ())


def test_change__models_targets_policy_and_nodes__restart_nothing() -> None:
    models = [{"id": "a", "source": "/a", "slo": {"ttft_s": 9.0}}, {"id": "c", "source": "/c"}]
    wanted = {"models": models, "engine": {"policy": "adbs"}, "pools": [{"nodes": {"min": 3}}]}

    change = change_between(applications(BASE), applications(wanted))

    assert change.restarts == ()
    assert "the units of pool default: 1 -> 3 replicas" in change.in_place
    assert "model a: slo.ttft_s 2.0 -> 9.0" in change.in_place
    assert {"model b: removed", "model c: added", "policy mux -> adbs"} <= set(change.in_place)


def test_change__what_shapes_a_unit__restarts_units_of_that_pool_only() -> None:
    pools = [{"name": "one"}, {"name": "two"}]
    change = change_between(
        applications({**BASE, "pools": pools}),
        applications({**BASE, "pools": [pools[0], {"name": "two", "kv_memory": "64MiB"}]}),
    )

    (line,) = change.restarts
    assert line.startswith("the units of pool two, one after the other")
    assert "kv_pool_bytes" in line
    assert change.in_place == ()


def test_change__labels_of_a_pools_nodes__restart_its_units() -> None:
    pool = {"node_labels": {"place": "here"}}

    change = change_between(applications(BASE), applications({**BASE, "pools": [pool]}))

    (line,) = change.restarts
    assert "ray_actor_options.label_selector" in line


def test_change__pool_shall_follow_demand__restarts_no_unit() -> None:
    pool = {"device": "simulated", "gpu_type": "A40", "node_labels": {"place": "here"}}
    before, after = ({**BASE, "pools": [{**pool, "nodes": nodes}]} for nodes in ({"min": 1}, {"min": 1, "max": 3}))

    assert change_between(applications(before), applications(after)).restarts == ()


def test_change__second_pool__is_added_and_restarts_nothing() -> None:
    change = change_between(
        applications({**BASE, "pools": [{"name": "one"}]}),
        applications({**BASE, "pools": [{"name": "one"}, {"name": "two", "device": "simulated", "mesh_gpus": 1}]}),
    )

    assert change.restarts == ()
    assert "the units of pool two: added" in change.in_place


def test_change__pool_removed__ends_its_units() -> None:
    change = change_between(
        applications({**BASE, "pools": [{"name": "one"}, {"name": "two"}]}),
        applications({**BASE, "pools": [{"name": "one"}]}),
    )

    assert change.restarts == ("the units of pool two: removed, they end",)


def test_change__gateway_setting__restarts_gateways_and_neither_control_loop_nor_units() -> None:
    change = change_between(applications(BASE), applications({**BASE, "gateway": {"hold_s": 7.0}}))

    (line,) = change.restarts
    assert line.startswith("the gateways, one after the other: hold_s")
    assert change.in_place == ()


def test_only_at_start__another_port__is_named_and_what_serve_adds_is_not() -> None:
    told = only_at_start({"host": "h", "port": 1, "root_path": "/"}, {"host": "h", "port": 2})

    assert told == ("gateway.port 1 -> 2",)


def test_running_fleets__announced__is_found_by_name_and_gone_after(tmp_path: Path) -> None:
    fleet = running()
    with announced(tmp_path, fleet):
        (file,) = tmp_path.iterdir()
        assert file.stat().st_mode & 0o077 == 0, "only its owner may read the token"
        assert find_fleet(tmp_path, "fleet") == fleet
        with pytest.raises(FleetUnreachable, match="running: fleet"):
            find_fleet(tmp_path, "other")

    assert not list(tmp_path.iterdir())


def test_running_fleets__folder_cannot_be_written_any_more__are_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(file))

    gone = running("gone", pid=1, started_s=1.0)
    (tmp_path / "gone.json").write_bytes(msgspec.json.encode(gone))
    monkeypatch.setattr(Path, "unlink", refuse)

    assert not running_fleets(tmp_path)


def test_running_fleets__machines_time_is_set__are_found_and_restart_as_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux tells when a process was started from the boot on, and of the boot by the time of day as it is set."""
    fleet, booted_s = running(), psutil.boot_time()
    with announced(tmp_path, fleet):
        keep_applied(tmp_path, fleet, "name: fleet")
        monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: booted_s + 3600.0)

        assert find_fleet(tmp_path, "fleet") == fleet
        assert take_applied(tmp_path) == "name: fleet"


def test_process_started__machines_time_is_set__psutil_that_remembers_the_boot_is_asked_for_it_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As psutil 6 does, for as long as the process runs."""
    booted_s = remembered_s = 1e9

    def boot_time() -> float:
        nonlocal remembered_s
        remembered_s = booted_s
        return booted_s

    monkeypatch.setattr(psutil._psplatform, "boot_time", boot_time)
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: remembered_s + 7.0)
    assert process_started_s() == 7.0

    booted_s += 3600.0

    assert process_started_s() == 7.0


def test_running_fleets__same_process_id_in_another_container__each_keeps_its_note(tmp_path: Path) -> None:
    with announced(tmp_path, running("ours")):
        with announced(tmp_path, replace(running("theirs"), boot="another")):
            assert [f.name for f in running_fleets(tmp_path)] == ["ours"]
        assert [f.name for f in running_fleets(tmp_path)] == ["ours"]


def test_running_fleets__of_a_container_that_shares_the_folder__are_neither_found_nor_removed(tmp_path: Path) -> None:
    fleet = replace(running(pid=1, started_s=1.0), boot="another")
    with announced(tmp_path, fleet):
        assert not running_fleets(tmp_path)
        assert list(tmp_path.iterdir())


def test_announced__notes_of_boots_before__go_where_they_are_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a loss of power."""
    monkeypatch.setattr("deploy.local.running_fleets.this_machine", lambda: "here/1")
    before = "11111111-1111-1111-1111-111111111111-4026531836"
    for machine in ("here/1", "there/1", ""):
        fleet = replace(running(pid=len(machine) + 2, started_s=1.0), boot=before, machine=machine)
        (tmp_path / f"{before}-{fleet.pid}.json").write_bytes(msgspec.json.encode(fleet))
        keep_applied(tmp_path, fleet, "name: fleet")

    with announced(tmp_path, running("ours")):
        assert [f.name for f in running_fleets(tmp_path)] == ["ours"]

    left = sorted(file.name.removeprefix(before) for file in tmp_path.iterdir())
    assert left == ["-2-1.00.applied", "-2.json", "-9-1.00.applied", "-9.json"]


def test_running_fleets__left_by_a_process_that_died__is_removed(tmp_path: Path) -> None:
    died = running(started_s=1.0)
    with announced(tmp_path, died):
        keep_applied(tmp_path, died, "name: fleet")
        assert not running_fleets(tmp_path)
        assert not list(tmp_path.iterdir())


def test_change__pool_renamed_or_without_an_option__is_told_without_nones() -> None:
    pools = [{"name": "one", "nodes": {"min": 2}}], [{"name": "two", "nodes": {"min": 2}}]

    change = change_between(*(applications({**BASE, "pools": p}) for p in pools))

    told = [*change.in_place, *change.restarts]
    assert "the units of pool two: added" in told
    assert "the units of pool one: removed, they end" in told
    assert not [line for line in told if "None" in line or "expected_units" in line]
