"""A batch whose gateway restarts or crashes, and one that two replicas see."""

import asyncio
import time

from batch_rig import jsonl, line
from fake_unit import eventually


async def test_batch__gateway_restarts__goes_on_from_what_was_written(start) -> None:
    unit = await start.unit(token_gap_s=0.02)
    async with start(unit) as first:
        batch = await first.send(jsonl(*(line(i) for i in range(40))))
        await eventually(lambda: len(unit.requests) >= 12)
    asked_before = len(unit.requests)
    async with start(unit) as second:
        ended = await second.ended(batch.id)
        results = await second.lines_of(ended.output_file_id)

    assert asked_before < 40, "it was in its midst"
    assert ended.status == "completed"
    assert sorted(r["custom_id"] for r in results) == sorted(f"request-{i}" for i in range(40))
    assert len(unit.requests) <= 40 + 4, "only what was under way is asked again"


async def test_batch__replica_crashes__another_takes_over_and_no_line_has_two_results(start, monkeypatch) -> None:
    unit = await start.unit(token_gap_s=0.02)
    async with start(unit, flush_s=0.2) as first, start(unit) as second:
        batch = await first.send(jsonl(*(line(i) for i in range(60))))
        await eventually(lambda: len(unit.requests) >= 12)
        (worker,) = [worker for worker in start.workers if worker._running]  # one replica works on it at a time
        await crash(worker, monkeypatch)
        ended = await second.ended(batch.id)
        results = await second.lines_of(ended.output_file_id)

    assert ended.status == "completed"
    assert sorted(r["custom_id"] for r in results) == sorted(f"request-{i}" for i in range(60))


async def test_batch__replica_crashes_and_the_clock_is_set_back__another_takes_over_as_soon(start, monkeypatch) -> None:
    """As where a machine starts again with a wrong clock: the batch waited for as long."""
    unit = await start.unit(token_gap_s=0.02)
    async with start(unit, flush_s=0.2) as first, start(unit) as second:
        batch = await first.send(jsonl(*(line(i) for i in range(30))))
        await eventually(lambda: len(unit.requests) >= 8)
        (worker,) = [worker for worker in start.workers if worker._running]
        await crash(worker, monkeypatch)
        now_s = time.time
        monkeypatch.setattr(time, "time", lambda: now_s() - 3600)
        ended = await second.ended(batch.id)

    assert ended.status == "completed"


async def crash(worker, monkeypatch) -> None:
    """As a process ends that is killed: nothing is written any more, nothing is let go."""

    async def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr("router.batches.batch_worker._let_go", nothing)
    monkeypatch.setattr(worker, "_take_open", nothing)
    for task in tuple(worker._running.values()):
        task.cancel()
    await asyncio.sleep(0)


async def test_batch__two_replicas_at_once__share_many_batches_and_ask_each_line_once(start) -> None:
    unit = await start.unit()
    async with start(unit) as first, start(unit) as second:
        batches = [await one.send(jsonl(*(line(i) for i in range(5)))) for _ in range(6) for one in (first, second)]
        ended = [await second.ended(batch.id) for batch in batches]

    assert {batch.status for batch in ended} == {"completed"}
    assert len(unit.requests) == 12 * 5
