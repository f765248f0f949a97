"""What is left in /tmp of a fleet whose command was killed goes when the next one starts; what lives stays."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from full_disk import full_disk

from deploy.local.running_fleets import this_boot
from deploy.local.session_folders import make_session_folder, remove_left_behind


def left_behind(parent: Path, **changes: object) -> Path:
    """A folder of a process that is gone."""
    folder = make_session_folder(parent)
    (folder / "ray").mkdir()
    owner = folder / "owner.json"
    owner.write_text(json.dumps({**json.loads(owner.read_text()), "started_s": 1.0, **changes}))
    return folder


def test_make_session_folder__disk_full__leaves_none_behind(tmp_path: Path) -> None:
    """Nobody could tell later whose it was."""
    with full_disk(), pytest.raises(OSError, match="large"):
        make_session_folder(tmp_path)

    assert not list(tmp_path.iterdir())


def test_remove_left_behind__its_process_is_gone__is_removed(tmp_path: Path) -> None:
    folder = left_behind(tmp_path)

    remove_left_behind(tmp_path)

    assert not folder.exists()


def test_remove_left_behind__of_the_boot_before__is_removed(tmp_path: Path) -> None:
    folder = left_behind(tmp_path, boot="11111111-1111-1111-1111-111111111111-1", pid=os.getpid())

    remove_left_behind(tmp_path)

    assert not folder.exists()


def test_remove_left_behind__a_process_of_its_cluster_lives_still__stays_until_it_is_gone(tmp_path: Path) -> None:
    folder = left_behind(tmp_path)
    command = [sys.executable, "-c", "input()", f"--session={folder}/ray"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as raylet:
        remove_left_behind(tmp_path)
        assert folder.exists()
        raylet.communicate(b"\n")

    remove_left_behind(tmp_path)

    assert not folder.exists()


@pytest.mark.parametrize("kind", ["ours", "of another container", "of another version", "another command's"])
def test_remove_left_behind__may_live__stays(tmp_path: Path, kind: str) -> None:
    match kind:
        case "ours":
            folder = make_session_folder(tmp_path)
        case "of another container":
            folder = left_behind(tmp_path, boot=this_boot() + "1")
        case "of another version":
            folder = left_behind(tmp_path)
            (folder / "owner.json").write_text("{}")
        case _:
            folder = tmp_path / "muxfleet-x"
            folder.mkdir()

    remove_left_behind(tmp_path)

    assert folder.exists()
