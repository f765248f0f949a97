"""Files of OpenAI's API, by the owner that uploaded them. Every call blocks: call it from a thread."""

import re
import secrets
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import IO, Any

import msgspec

from router.batches.object_store import ObjectStore

_ID = re.compile(r"^file-[0-9a-f]{32}$")
_MAX_NAME = 255


class KeptFile(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what is known of a file beside its bytes."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {**msgspec.structs.asdict(self), "object": "file", "status": "processed"}


class KeptFiles:
    """`owner` is the id of an API key, or another name without slashes."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._decode = msgspec.json.Decoder(KeptFile).decode

    def add(
        self,
        owner: str,
        source: IO[bytes],
        *,
        filename: str,
        purpose: str,
        keep_s: float | None,
        file_id: str | None = None,
    ) -> KeptFile:
        """Keeps the bytes first: a file that is listed is whole. With a `file_id` of before, it takes its place."""
        is_new = file_id is None
        file_id = file_id or f"file-{secrets.token_hex(16)}"
        num_bytes = self._store.put(f"{owner}/files/{file_id}.content", source)
        now_s = time.time()
        kept = KeptFile(
            id=file_id,
            bytes=num_bytes,
            created_at=int(now_s),
            expires_at=None if keep_s is None else int(now_s + keep_s),
            filename=filename.rsplit("/", 1)[-1][:_MAX_NAME] or "file",
            purpose=purpose,
        )
        try:
            self._store.write(f"{owner}/files/{file_id}.json", msgspec.json.encode(kept))
        except OSError:
            if is_new:  # nobody can ask for it, nor delete it
                with suppress(OSError):
                    self._store.delete(f"{owner}/files/{file_id}.content")
            raise
        return kept

    def get(self, owner: str, file_id: str) -> KeptFile | None:
        """None also where it has expired."""
        kept = self._kept(owner, file_id)
        return None if kept is None or _is_over(kept) else kept

    def listed(self, owner: str) -> list[KeptFile]:
        """Returns the owner's files, the newest first."""
        files = [file for file_id in self._ids(owner) if (file := self.get(owner, file_id)) is not None]
        return sorted(files, key=lambda file: (file.created_at, file.id), reverse=True)

    def remove_expired(self, owner: str, needed: Collection[str]) -> int:
        """Removes all but the `needed`, which batches still read; returns how many."""
        over = [
            file_id
            for file_id in self._ids(owner)
            if file_id not in needed and (kept := self._kept(owner, file_id)) is not None and _is_over(kept)
        ]
        return sum(self.delete(owner, file_id) for file_id in over)

    def open(self, owner: str, file_id: str) -> IO[bytes]:
        """Opens it for reading. Raises FileNotFoundError."""
        return self._store.open(f"{owner}/files/{file_id}.content")

    def chunks(self, owner: str, file_id: str) -> Iterator[bytes]:
        return self._store.chunks(f"{owner}/files/{file_id}.content")

    def delete(self, owner: str, file_id: str) -> bool:
        """Returns whether there was one."""
        if not _ID.match(file_id) or not self._store.delete(f"{owner}/files/{file_id}.json"):
            return False
        self._store.delete(f"{owner}/files/{file_id}.content")
        return True

    def _ids(self, owner: str) -> list[str]:
        return [name.removesuffix(".json") for name in self._store.names(f"{owner}/files") if name.endswith(".json")]

    def _kept(self, owner: str, file_id: str) -> KeptFile | None:
        data = self._store.read(f"{owner}/files/{file_id}.json") if _ID.match(file_id) else None
        return None if data is None else self._decode(data)


def least_of(*keep_s: float | None) -> float | None:
    """Returns how long a file is kept, by all who bound it."""
    return min((one for one in keep_s if one is not None), default=None)


def _is_over(kept: KeptFile) -> bool:
    return kept.expires_at is not None and kept.expires_at <= time.time()
