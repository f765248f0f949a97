"""Batches in the store, by owner. Every call blocks: call it from a thread."""

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from router.batches.batch_lease import BatchLease, LeaseWatch
from router.batches.batch_record import TERMINAL, BatchRequest, BatchState, made_s
from router.batches.object_store import ObjectStore

_ID = re.compile(r"^batch_[0-9a-f]{32}$")
_OPEN = "open"
_MAKING_S = 3600.0  # a store may hang for as long in the midst


class LineResult(msgspec.Struct, frozen=True, array_like=True):
    """A line of the output, or, where not `ok`, of the error file. `number` is that of the input's line, from 1."""

    number: int
    ok: bool
    line: msgspec.Raw


class KeptBatches:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._watch = LeaseWatch()

    def add(self, request: BatchRequest) -> None:
        """Makes it last what is listed: a process may end between the two, and nobody would work on the batch."""
        self._store.write(_open(request.owner, request.id), b"")
        try:
            self._store.write(f"{_folder(request)}/request.json", msgspec.json.encode(request))
        except OSError:
            with suppress(OSError):
                self._store.delete(_open(request.owner, request.id))
            raise

    def request(self, owner: str, batch_id: str) -> BatchRequest | None:
        data = self._store.read(f"{owner}/batches/{batch_id}/request.json") if _ID.match(batch_id) else None
        return None if data is None else msgspec.json.decode(data, type=BatchRequest)

    def state(self, request: BatchRequest) -> BatchState:
        folder = _folder(request)
        data = self._store.read(f"{folder}/ended.json") or self._store.read(f"{folder}/state.json")
        return BatchState() if data is None else msgspec.json.decode(data, type=BatchState)

    def set_state(self, request: BatchRequest, state: BatchState) -> None:
        """The first end of a batch is its end. A write of a replica whose store hung may come when another one has
        taken the batch over and ended it: it would be under way again, and nobody work on it.
        """
        if state.status in TERMINAL:
            self._store.create(f"{_folder(request)}/ended.json", msgspec.json.encode(state))
        self._store.write(f"{_folder(request)}/state.json", msgspec.json.encode(state))

    def cancel(self, request: BatchRequest) -> None:
        self._store.create(f"{_folder(request)}/cancel", str(int(time.time())).encode())

    def cancelling_at(self, request: BatchRequest) -> int | None:
        data = self._store.read(f"{_folder(request)}/cancel")
        return None if data is None else int(data or b"0")

    def ids(self, owner: str) -> list[str]:
        """Returns the ids of the owner's batches, the newest first."""
        return [name for name in reversed(self._store.names(f"{owner}/batches")) if _ID.match(name)]

    def owners(self) -> list[str]:
        """Returns who has files or batches."""
        return [name for name in self._store.names("") if name != _OPEN]

    def forget_ended(self, owner: str, *, before_s: float) -> int:
        """Removes what is known of batches that ended before then; returns how many."""
        requests = (self.request(owner, batch_id) for batch_id in self.ids(owner))
        over = [one for one in requests if one is not None and one.created_at < before_s and self._ended(one, before_s)]
        return sum(self._store.delete(_folder(one)) for one in over)

    def _ended(self, request: BatchRequest, before_s: float) -> bool:
        state = self.state(request)
        return state.status in TERMINAL and state.times.get(state.status, request.created_at) < before_s

    # ---- work ----

    def open_batches(self) -> list[tuple[str, str]]:
        """Returns owner and id of those that are not at their end."""
        found = []
        for name in self._store.names(_OPEN):
            owner, _, batch_id = name.rpartition(".")
            if owner and _ID.match(batch_id):
                found.append((owner, batch_id))
        self._watch.keep(frozenset(_leases(owner, batch_id) for owner, batch_id in found))
        return found

    def close(self, request: BatchRequest) -> None:
        """Its end is written: what only the work needed goes."""
        for name in (f"{_folder(request)}/results", _open(request.owner, request.id)):
            self._store.delete(name)

    def drop_unmade(self, owner: str, batch_id: str) -> None:
        """Forgets an open batch without a request whose process ended as it was made, or whose store failed then."""
        if time.time() - made_s(batch_id) > _MAKING_S:
            self._store.delete(_open(owner, batch_id))

    def take(self, owner: str, batch_id: str, holder: str, lease_s: float) -> BatchLease | None:
        """None while another replica works on it."""
        return BatchLease.take(
            self._store, _leases(owner, batch_id), holder, now_s=time.time(), lease_s=lease_s, watch=self._watch
        )

    def add_results(self, request: BatchRequest, lease: int, part: int, results: Sequence[LineResult]) -> None:
        lines = b"".join(msgspec.json.encode(result) + b"\n" for result in results)
        self._store.write(f"{_folder(request)}/results/{lease:08d}-{part:08d}", lines)

    def results(self, request: BatchRequest) -> Iterator[LineResult]:
        """Yields each line's first result. Two replicas may have had the same one, when the first seemed dead. Raises
        FileNotFoundError where the other one has come to the batch's end meanwhile: what is left is not all of them.
        """
        folder = f"{_folder(request)}/results"
        seen: set[int] = set()
        for name in self._store.names(folder):
            part = self._store.read(f"{folder}/{name}")
            if part is None:
                raise FileNotFoundError(f"{folder}/{name}")
            for text in part.splitlines():
                try:
                    result = msgspec.json.decode(text, type=LineResult)
                except msgspec.MsgspecError:
                    continue  # the end of a part that was cut off: the line is asked again
                if result.number not in seen:
                    seen.add(result.number)
                    yield result


def result_file_id(request: BatchRequest, kind: str) -> str:
    """Names a file that the batch makes: the same one, whoever makes it."""
    return f"file-{hashlib.blake2b(f'{request.id}/{kind}'.encode(), digest_size=16).hexdigest()}"


def _open(owner: str, batch_id: str) -> str:
    return f"{_OPEN}/{owner}.{batch_id}"


def _folder(request: BatchRequest) -> str:
    return f"{request.owner}/batches/{request.id}"


def _leases(owner: str, batch_id: str) -> str:
    return f"{owner}/batches/{batch_id}/leases"
