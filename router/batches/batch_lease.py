"""The right of one replica to work on a batch. It ends by itself when the replica says nothing for a while."""

import time
from typing import Self

import msgspec

from router.batches.object_store import ObjectStore


class _Holding(msgspec.Struct, frozen=True):
    holder: str
    expires_s: float  # Unix time


class LeaseWatch:
    """Sees whether leases of others are renewed. By the time of day alone, one whose replica ended before the clock was
    set back by an hour would hold for that hour.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[bytes, float]] = {}

    def unchanged_s(self, folder: str, held: bytes, now_s: float) -> float:
        """Returns for how long it has been the same, by a clock that is not set."""
        before, since_s = self._held.get(folder, (b"", now_s))
        if before != held:
            self._held[folder] = (held, now_s)
            return 0.0
        return now_s - since_s

    def keep(self, folders: frozenset[str]) -> None:
        """Forgets all others."""
        self._held = {folder: seen for folder, seen in self._held.items() if folder in folders}


class BatchLease:
    """Leases of a batch are numbered files that only one replica can create; the last one counts. Who was believed dead
    and comes back finds a later one, and stops. `number` tells whose results are whose.
    """

    def __init__(self, store: ObjectStore, folder: str, number: int, holder: str) -> None:
        self._store = store
        self._folder = folder
        self.number = number
        self._holder = holder

    @classmethod
    def take(
        cls, store: ObjectStore, folder: str, holder: str, *, now_s: float, lease_s: float, watch: LeaseWatch
    ) -> Self | None:
        """None while another replica holds it."""
        names = store.names(folder)
        number = int(names[-1]) if names else 0
        if names:
            held = store.read(f"{folder}/{names[-1]}")
            try:
                is_over = held is None or msgspec.json.decode(held, type=_Holding).expires_s <= now_s
                if not is_over and watch.unchanged_s(folder, held or b"", time.monotonic()) < lease_s:
                    return None
            except msgspec.MsgspecError:
                pass  # half of it was written: its replica ended there
        holding = msgspec.json.encode(_Holding(holder, now_s + lease_s))
        if not store.create(f"{folder}/{number + 1:08d}", holding):
            return None
        for name in names[:-1]:
            store.delete(f"{folder}/{name}")
        return cls(store, folder, number + 1, holder)

    def is_held(self) -> bool:
        """False: another replica has taken over."""
        names = self._store.names(self._folder)
        return bool(names) and int(names[-1]) == self.number

    def renew(self, *, now_s: float, lease_s: float) -> bool:
        """False: another replica has taken over."""
        if not self.is_held():
            return False
        self._write(now_s + lease_s)
        return True

    def release(self) -> None:
        self._write(0.0)

    def _write(self, expires_s: float) -> None:
        data = msgspec.json.encode(_Holding(self._holder, expires_s))
        self._store.write(f"{self._folder}/{self.number:08d}", data)
