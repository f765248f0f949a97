"""Keeps documents in one SQLite file."""

import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from deploy.state.state_store import StateNotKept

logger = logging.getLogger(__name__)

FORMAT = 1
_APPLICATION = 0x6D757866  # "muxf", in the file's header: nobody else's database is written to
_LOCKED_S = 2.0
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_GONE = sqlite3.SQLITE_READONLY_DBMOVED  # deleted or moved, or another put in its place
_TABLE = "CREATE TABLE IF NOT EXISTS documents (name TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID"

ResultT = TypeVar("ResultT")


class FileStore:
    """Implements StateStore. A damaged file is put aside under another name and a new one begun, as where somebody
    deleted it; a file of a newer release, or of another program, is left alone.
    """

    def __init__(self, path: Path) -> None:
        """Raises StateNotKept."""
        self._path = path
        self._database: sqlite3.Connection | None = None
        self.begun = 0
        self._attempt(lambda database: None)

    def read(self, name: str) -> bytes | None:
        row = self._attempt(
            lambda database: database.execute("SELECT body FROM documents WHERE name = ?", (name,)).fetchone()
        )
        return None if row is None else bytes(row[0])

    def write(self, name: str, document: bytes) -> None:
        self._attempt(
            lambda database: database.execute("INSERT OR REPLACE INTO documents VALUES (?, ?)", (name, document))
        )

    def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def _attempt(self, work: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        try:
            return self._try(work)
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == _GONE:
                self._note_gone()
            elif error.sqlite_errorcode & 0xFF in _DAMAGED:
                self._put_aside(error)
            else:
                raise self._not_kept(error) from error
        try:
            return self._try(work)
        except sqlite3.DatabaseError as error:
            raise self._not_kept(error) from error

    def _try(self, work: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        if self._database is None:
            self._database = self._opened()
        with self._database:
            return work(self._database)

    def _opened(self) -> sqlite3.Connection:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StateNotKept(f"{self._path.parent}: {error.strerror}; set state.folder to one to write in") from error
        database = sqlite3.connect(self._path, timeout=_LOCKED_S, check_same_thread=False)
        try:
            self._check_format(database)
        except BaseException:
            database.close()
            raise
        return database

    def _check_format(self, database: sqlite3.Connection) -> None:
        application = database.execute("PRAGMA application_id").fetchone()[0]
        is_new = not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not is_new and application != _APPLICATION:
            raise StateNotKept(f"{self._path} is another program's database; set state.folder to another folder")
        if is_new:
            with database:
                database.execute("BEGIN IMMEDIATE")  # two that start at once: one makes it, the other finds it
                database.execute(_TABLE)
                database.execute(f"PRAGMA application_id = {_APPLICATION}")
                database.execute(f"PRAGMA user_version = {FORMAT}")
            self.begun += 1
            return
        found = database.execute("PRAGMA user_version").fetchone()[0]
        if found != FORMAT:
            raise StateNotKept(
                f"{self._path} has format {found} of another release, this one knows {FORMAT}; "
                "go back to that release, or move the file away"
            )

    def _note_gone(self) -> None:
        self.close()
        logger.warning("state file is gone; what is there now is written to", extra={"file": str(self._path)})

    def _put_aside(self, error: sqlite3.DatabaseError) -> None:
        self.close()
        aside = self._path.with_name(f"{self._path.name}.damaged-{time.time_ns()}")
        try:
            self._path.rename(aside)
        except OSError as failure:
            raise StateNotKept(
                f"{self._path} is damaged ({error}) and cannot be renamed: {failure.strerror}"
            ) from error
        logger.warning(
            "state file is damaged and was put aside; what it held is forgotten",
            extra={"file": str(self._path), "kept_as": str(aside), "reason": str(error)},
        )

    def _not_kept(self, error: sqlite3.DatabaseError) -> StateNotKept:
        self.close()
        return StateNotKept(f"{self._path}: {error}; free its disk, or set state.folder to one to write in")
