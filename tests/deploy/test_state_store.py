"""The store of what a control loop must not forget, whole, damaged, locked, full and of another release."""

import logging
import multiprocessing
import os
import resource
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.state.file_store import FORMAT, FileStore
from deploy.state.state_store import StateNotKept
from deploy.state.write_behind import WriteBehind


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    text: str


class StoreOfMemory:
    """Fails while `reason` is set."""

    def __init__(self) -> None:
        self.documents: dict[str, bytes] = {}
        self.reason: str | None = None
        self.writes = 0
        self.begun = 0

    def read(self, name: str) -> bytes | None:
        self._check()
        return self.documents.get(name)

    def write(self, name: str, document: bytes) -> None:
        self._check()
        self.writes += 1
        self.documents[name] = document

    def close(self) -> None:
        pass

    def _check(self) -> None:
        if self.reason is not None:
            raise StateNotKept(self.reason)


@pytest.fixture
def memory() -> StoreOfMemory:
    return StoreOfMemory()


@pytest.fixture
def behind(memory: StoreOfMemory) -> Iterator[WriteBehind]:
    writer = WriteBehind(lambda: memory, retry_s=0.02)
    yield writer
    writer.close()


def until(is_so) -> None:
    end_s = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.reason for r in caplog.records if r.levelno >= logging.WARNING]


def test_file__written_and_opened_again__has_each_name_s_newest_document(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "new" / "s.sqlite3")
    store.write("a", b"1")
    store.write("a", b"2")
    store.write("b", b"\x00\xff")
    store.close()

    again = FileStore(tmp_path / "new" / "s.sqlite3")

    assert (again.read("a"), again.read("b"), again.read("c")) == (b"2", b"\x00\xff", None)


@pytest.mark.parametrize("damage", ["text", "middle"])
def test_file__damaged__is_put_aside_with_one_line_and_a_new_one_begun(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s.sqlite3"
    store = FileStore(path)
    store.write("a", b"1" * 50_000)
    store.close()
    if damage == "text":
        path.write_bytes(b"nothing of a database" * 400)
    else:
        with path.open("r+b") as file:
            file.seek(100)
            file.write(b"\xff" * 9000)

    store = FileStore(path)
    read = store.read("a")
    store.write("a", b"2")

    assert read is None
    assert store.read("a") == b"2"
    assert [r.message for r in caplog.records] == ["state file is damaged and was put aside; what it held is forgotten"]
    assert len(list(tmp_path.glob("s.sqlite3.damaged-*"))) == 1


def test_file__of_a_newer_release__is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite3"
    FileStore(path).close()
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {FORMAT + 1}")
    before = path.read_bytes()

    with pytest.raises(StateNotKept, match=f"format {FORMAT + 1} of another release"):
        FileStore(path)

    assert path.read_bytes() == before


def test_file__another_programs_database__is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite3"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE theirs (a)")
    before = path.read_bytes()

    with pytest.raises(StateNotKept, match="another program's database"):
        FileStore(path)

    assert path.read_bytes() == before


def test_file__locked_by_another__fails_and_works_when_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite3"
    store = FileStore(path)
    holder = sqlite3.connect(path)
    holder.execute("BEGIN EXCLUSIVE")

    with pytest.raises(StateNotKept, match="locked"):
        store.write("a", b"1")
    holder.rollback()
    store.write("a", b"2")

    assert store.read("a") == b"2"


def write_on_a_full_disk(path: Path, answer) -> None:
    """A process that may make no file larger than 32 KiB is what a full disk looks like to SQLite."""
    store = FileStore(path)
    store.write("a", b"small")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32_768, resource.RLIM_INFINITY))
    try:
        store.write("a", os.urandom(100_000))
    except StateNotKept as error:
        answer.put((error.reason, store.read("a")))
    else:
        answer.put(("written", None))


def test_file__disk_full__fails_and_keeps_the_document_before(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    answer = spawn.Queue()
    process = spawn.Process(target=write_on_a_full_disk, args=(tmp_path / "s.sqlite3", answer))
    process.start()
    reason, kept = answer.get(timeout=60)
    process.join(30)

    assert kept == b"small"
    assert "free its disk" in reason


def test_file__in_a_folder_that_cannot_be_made__is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StateNotKept, match=r"set state\.folder"):
        FileStore(tmp_path / "file" / "s.sqlite3")


@pytest.mark.parametrize("loss", ["file", "folder", "another in its place"])
def test_file__deleted_while_it_is_open__is_begun_anew_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loss: str
) -> None:
    file = tmp_path / "state" / "s.sqlite3"
    store = FileStore(file)
    store.write("a", b"1")
    if loss == "folder":
        shutil.rmtree(file.parent)
    elif loss == "file":
        file.unlink()
    else:
        FileStore(tmp_path / "other.sqlite3").close()
        (tmp_path / "other.sqlite3").replace(file)
    begun = store.begun

    store.write("b", b"2")

    assert store.begun == begun + (loss != "another in its place")
    assert [r.message for r in caplog.records] == ["state file is gone; what is there now is written to"]
    store.close()
    again = FileStore(file)
    assert (again.read("a"), again.read("b")) == (None, b"2")


def test_write_behind__file_deleted_while_it_is_open__has_everything_again_with_the_next_write(tmp_path: Path) -> None:
    """Also what a control loop before wrote, and this one has only read."""
    file = tmp_path / "s.sqlite3"
    first = WriteBehind(lambda: FileStore(file))
    first.keep("of the one before", Note(text="0"), format=1)
    first.close()
    second = WriteBehind(lambda: FileStore(file))
    assert second.load("of the one before", Note, format=1) is not None
    second.keep("once", Note(text="1"), format=1)
    until(lambda: is_there(file, "once"))
    file.unlink()

    second.keep("again", Note(text="2"), format=1)
    second.close()

    third = WriteBehind(lambda: FileStore(file))
    found = [third.load(name, Note, format=1) for name in ("of the one before", "once", "again")]
    third.close()
    assert found == [Note(text="0"), Note(text="1"), Note(text="2")]


def is_there(file: Path, name: str) -> bool:
    store = FileStore(file)
    found = store.read(name)
    store.close()
    return found is not None


def test_write_behind__documents__are_read_back_by_the_next_one(memory: StoreOfMemory) -> None:
    writer = WriteBehind(lambda: memory)
    writer.keep("n", Note(text="1"), format=3)
    writer.keep("n", Note(text="2"), format=3)
    writer.close()

    reader = WriteBehind(lambda: memory)
    found = reader.load("n", Note, format=3)
    reader.close()

    assert found == Note(text="2")


def test_write_behind__same_document_again__is_not_written_again(memory: StoreOfMemory, behind: WriteBehind) -> None:
    behind.keep("n", Note(text="1"), format=1)
    until(lambda: memory.writes == 1)
    behind.keep("n", Note(text="1"), format=1)
    behind.keep("m", Note(text="1"), format=1)
    until(lambda: "m" in memory.documents)

    assert memory.writes == 2


def test_write_behind__store_fails__says_so_once_and_writes_the_newest_when_it_works(
    memory: StoreOfMemory, behind: WriteBehind, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    memory.reason = "disk full"
    behind.keep("n", Note(text="1"), format=1)
    until(lambda: errors(caplog))
    behind.keep("n", Note(text="2"), format=1)
    time.sleep(0.1)
    assert errors(caplog) == ["disk full"]

    memory.reason = None
    until(lambda: memory.documents)

    assert behind.load("n", Note, format=1) == Note(text="2")
    assert errors(caplog) == ["disk full"]
    until(lambda: "state is kept again" in [r.message for r in caplog.records])


def test_write_behind__store_never_opens__no_caller_fails(caplog: pytest.LogCaptureFixture) -> None:
    def refused() -> StoreOfMemory:
        raise StateNotKept("no folder")

    writer = WriteBehind(refused, retry_s=0.01)
    assert writer.load("n", Note, format=1) is None
    writer.keep("n", Note(text="1"), format=1)
    time.sleep(0.1)
    writer.close()

    assert errors(caplog) == ["no folder"]


def test_write_behind__store_stands_still__keeping_returns_at_once() -> None:
    stands = threading.Event()

    class Standing(StoreOfMemory):
        def write(self, name: str, document: bytes) -> None:
            stands.wait(60)

    writer = WriteBehind(Standing)
    for i in range(1000):
        writer.keep("n", Note(text=str(i)), format=1)  # would take a minute, if it waited once
    assert not stands.is_set()
    stands.set()
    writer.close()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"format":2,"body":{"text":"x"}}', "format 2 of another release"),
        (b"{", "read"),
        (b'{"format":1,"body":[]}', "read"),
    ],
)
def test_load__document_of_another_release_or_none_at_all__is_not_used_with_one_line(
    memory: StoreOfMemory, behind: WriteBehind, raw: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory.documents["n"] = raw

    assert behind.load("n", Note, format=1) is None

    (line,) = errors(caplog)
    assert reason in line
