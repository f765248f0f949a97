"""Writes documents behind its callers' backs, from a thread of its own: none of them ever waits for a store or fails by
it.
"""

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec

from deploy.state.state_store import StateNotKept, StateStore

logger = logging.getLogger(__name__)

_RETRY_S = 5.0
_CLOSE_S = 3.0

DocumentT = TypeVar("DocumentT")


class _Envelope(msgspec.Struct):
    """`format` is the document's own; it grows with every change that older releases could not read."""

    format: int
    body: msgspec.Raw


class WriteBehind:
    """Keeps the newest document of each name, in a store that it opens itself. While the store cannot be used, that is
    logged once, what is newest waits in memory, and the store is tried again every few seconds. A store that begins
    anew meanwhile, as when somebody deletes its file, gets all of them again.
    """

    def __init__(self, open_store: Callable[[], StateStore], *, retry_s: float = _RETRY_S) -> None:
        """`open_store` may raise StateNotKept."""
        self._open_store = open_store
        self._retry_s = retry_s
        self._store: StateStore | None = None
        self._reason: str | None = None
        self._waiting: dict[str, bytes] = {}
        self._in_store: dict[str, bytes] = {}
        self._begun = 0
        self._news = threading.Condition()
        self._in_use = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._write_on, name="state", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str:
        """Returns why what is newest is not in the store; "" while it is, or is about to be."""
        return self._reason or ""

    def load(self, name: str, kind: type[DocumentT], *, format: int) -> DocumentT | None:
        """Reads a document; waits for the store for some seconds. None where there is none, it cannot be read, or it
        has another format; all but the first are logged.
        """
        try:
            with self._in_use:
                raw = self._opened().read(name)
        except StateNotKept as error:
            self._note_failure(error.reason)
            return None
        if raw is None:
            return None
        try:
            envelope = msgspec.json.decode(raw, type=_Envelope)
            if envelope.format == format:
                found = msgspec.json.decode(envelope.body, type=kind)
                with self._in_use:
                    self._in_store.setdefault(name, raw)
                return found
            reason = f"it has format {envelope.format} of another release, this one knows {format}"
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            reason = f"it cannot be read: {error}"
        logger.warning("kept state is not used", extra={"document": name, "reason": reason})
        return None

    def keep(self, name: str, document: object, *, format: int) -> None:
        """Returns at once; of two documents of a name the later one stays. `document`: what msgspec writes as JSON."""
        body = msgspec.Raw(msgspec.json.encode(document))
        with self._news:
            self._waiting[name] = msgspec.json.encode(_Envelope(format=format, body=body))
            self._news.notify()

    def close(self) -> None:
        """Writes what waits, for some seconds at most."""
        with self._news:
            self._is_closed = True
            self._news.notify()
        self._thread.join(_CLOSE_S)

    def _write_on(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    break
                documents, self._waiting = self._waiting, {}
            if not self._write(documents):
                with self._news:
                    self._waiting = documents | self._waiting
                    if self._is_closed or self._news.wait_for(lambda: self._is_closed, self._retry_s):
                        break
        with self._in_use:
            if self._store is not None:
                self._store.close()

    def _write(self, documents: dict[str, bytes]) -> bool:
        """Leaves in `documents` what is not written."""
        try:
            with self._in_use:
                store = self._opened()
                for name, document in list(documents.items()):
                    if self._in_store.get(name) != document:
                        store.write(name, document)
                        self._in_store[name] = document
                    del documents[name]
                if store.begun != self._begun:
                    for name, document in self._in_store.items():
                        store.write(name, document)
                    self._begun = store.begun
        except StateNotKept as error:
            self._note_failure(error.reason)
            return False
        if self._reason is not None:
            logger.info("state is kept again")
            self._reason = None
        return True

    def _opened(self) -> StateStore:
        if self._store is None:
            self._store = self._open_store()
            self._begun = self._store.begun
        return self._store

    def _note_failure(self, reason: str) -> None:
        if self._reason is None:
            logger.error("state is not kept; the control loop goes on without", extra={"reason": reason})
        self._reason = reason
