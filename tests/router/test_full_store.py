"""Files and batches where the disk is full."""

import io
from pathlib import Path

import httpx
import pytest
from batch_rig import eventually_ready
from full_disk import full_disk

from router.batches.kept_files import KeptFiles
from router.batches.object_store import ObjectStore

ROOM_BYTES = 256 * 1024


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != ".writable"]


@pytest.mark.parametrize("how", ["write", "create", "put"])
def test_store__no_room__fails_and_leaves_no_part_of_it_behind(tmp_path: Path, how: str) -> None:
    store = ObjectStore(str(tmp_path))
    data = b"x" * 2 * ROOM_BYTES

    with full_disk(room_bytes=ROOM_BYTES), pytest.raises(OSError, match="large"):
        getattr(store, how)("folder/name", io.BytesIO(data) if how == "put" else data)

    assert files_in(tmp_path) == []


def test_file__no_room_for_what_is_told_of_it__its_bytes_are_not_left_behind(tmp_path: Path, monkeypatch) -> None:
    def fail(self: ObjectStore, path: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    store = ObjectStore(str(tmp_path))
    monkeypatch.setattr(ObjectStore, "write", fail)

    with pytest.raises(OSError, match="No space"):
        KeptFiles(store).add("ann", io.BytesIO(b"data"), filename="f", purpose="batch", keep_s=None)

    assert files_in(tmp_path) == []


async def test_upload__no_room_for_temporary_files__503_that_says_so(start) -> None:
    async with start(await start.unit(), max_file_bytes=64_000_000) as replica:
        await eventually_ready(replica)
        async with httpx.AsyncClient(base_url=replica.served.url, timeout=60) as http:
            with full_disk(room_bytes=ROOM_BYTES):
                file = {"file": ("x.jsonl", b"x" * 4_000_000)}  # 1 MB of it is in memory
                reply = await http.post("/v1/files", files=file, data={"purpose": "batch"})

    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "batches_unavailable")
    assert "temporary" in reply.json()["error"]["message"]
