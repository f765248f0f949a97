"""A result is written whole, or what was there stays."""

import os
from pathlib import Path

import pytest
from full_disk import full_disk

from traces.whole_file import write_whole


def test_write_whole__disk_is_full__old_file_stays_and_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text("old")

    with full_disk(room_bytes=100), pytest.raises(OSError, match="File too large"):
        write_whole(file, b"x" * 1000)

    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]
    assert file.read_text() == "old"


def test_write_whole__mode_and_link__stay(tmp_path: Path) -> None:
    file, link = tmp_path / "run.json", tmp_path / "last.json"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to("run.json")

    write_whole(link, b"new")

    assert link.is_symlink()
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", 0o640)


def test_write_whole__pipe__is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, b"new")

        assert os.read(reader, 10) == b"new"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_write_whole__name_as_long_as_names_may_be__is_written(tmp_path: Path) -> None:
    file = tmp_path / ("ä" * 120 + ".json")

    write_whole(file, b"new")

    assert file.read_bytes() == b"new"
