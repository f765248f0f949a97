"""A batch whose store takes nothing for a while: what was answered is kept, and written when there is room again."""

import asyncio
import errno

import pytest
from batch_rig import jsonl, line
from fake_unit import eventually

from router.batches.object_store import ObjectStore


class Disk:
    """Stands under every store: full, or not."""

    def __init__(self) -> None:
        self.is_full = False

    def check(self, path: str) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device", path)


@pytest.fixture
def disk(monkeypatch) -> Disk:
    disk, write, create = Disk(), ObjectStore.write, ObjectStore.create

    def checked_write(store: ObjectStore, path: str, data: bytes) -> None:
        disk.check(path)
        write(store, path, data)

    def checked_create(store: ObjectStore, path: str, data: bytes) -> bool:
        disk.check(path)
        return create(store, path, data)

    monkeypatch.setattr(ObjectStore, "write", checked_write)
    monkeypatch.setattr(ObjectStore, "create", checked_create)
    return disk


async def test_batch__disk_is_full_for_a_while__no_answer_is_lost_and_no_more_is_asked(start, disk, caplog) -> None:
    unit = await start.unit(token_gap_s=0.01)
    async with start(unit) as replica:
        batch = await replica.send(jsonl(*(line(number) for number in range(60))))
        await eventually(lambda: len(unit.requests) >= 12)
        disk.is_full = True
        await eventually(lambda: "a batch waits: the store does not take its results" in caplog.messages)
        await asyncio.sleep(0.5)  # what was under way
        asked = len(unit.requests)
        await asyncio.sleep(0.5)
        asked_when_full = len(unit.requests)
        waiting = await replica.sdk.batches.retrieve(batch.id)
        disk.is_full = False
        ended = await replica.ended(batch.id)
        results = await replica.lines_of(ended.output_file_id)

    assert asked_when_full == asked < 60
    assert waiting.status == "in_progress"
    assert any("No space left" in getattr(record, "reason", "") for record in caplog.records)
    assert sorted(r["custom_id"] for r in results) == sorted(f"request-{i}" for i in range(60))
    assert len(unit.requests) == 60, "none is asked twice"


async def test_batch__disk_is_full_as_its_last_line_is_answered__ends_when_there_is_room(start, disk) -> None:
    unit = await start.unit(token_gap_s=0.05)
    async with start(unit) as replica:
        batch = await replica.send(jsonl(*(line(number) for number in range(4))))
        await eventually(lambda: len(unit.requests) == 4)
        disk.is_full = True
        await asyncio.sleep(1.0)
        disk.is_full = False
        ended = await replica.ended(batch.id)

    assert (ended.status, ended.request_counts.completed) == ("completed", 4)
    assert len(unit.requests) == 4, "none is asked twice"
