"""A batch whose gateway restarts or crashes, and one that two replicas see."""

import asyncio
import time

import msgspec
import pytest
from batch_rig import CHAT, jsonl, line, settings
from fake_unit import eventually
from prometheus_client import CollectorRegistry

from router.batches.batch_body import BatchBody, new_batch
from router.batches.batch_record import BatchState
from router.batches.batch_run import BatchLost, BatchRun
from router.batches.kept_batches import KeptBatches, LineResult
from router.batches.kept_files import KeptFiles
from router.batches.object_store import ObjectStore, StoreThreads
from router.telemetry.metrics import BatchMetrics


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


async def test_batch__replica_stands_while_another_ends_its_batch__changes_nothing_of_it_any_more(tmp_path) -> None:
    """As where its store hung: the batch was in progress again, with half its results, and nobody worked on it."""
    batches = KeptBatches(ObjectStore(str(tmp_path)))
    body = BatchBody(input_file_id="file", endpoint=CHAT, completion_window="24h")
    request = new_batch(body, [CHAT], owner="ann", tenant="ann", now_s=time.time())
    batches.add(request)
    before = batches.take("ann", request.id, "first", lease_s=0.0)
    run = BatchRun(
        request,
        before,
        batches=batches,
        files=KeptFiles(ObjectStore(str(tmp_path))),
        settings=settings(tmp_path),
        ask=None,
        places=asyncio.Semaphore(1),
        threads=StoreThreads(),
        metrics=BatchMetrics(CollectorRegistry()),
    )
    await run._set(BatchState(status="in_progress", total=2))
    for number in (1, 2):
        batches.add_results(request, before.number, number, [LineResult(number, True, msgspec.Raw(b"{}"))])
    being_read = batches.results(request)
    next(being_read)

    after = batches.take("ann", request.id, "second", lease_s=30.0)
    ended = BatchState(status="completed", total=2, completed=2)
    batches.set_state(request, ended)
    batches.close(request)
    run._add(LineResult(2, True, msgspec.Raw(b"{}")))

    assert after is not None
    for change in (run.flush, lambda: run._set(BatchState(status="finalizing"))):
        with pytest.raises(BatchLost):
            await change()
    with pytest.raises(FileNotFoundError):
        list(being_read)
    assert (batches.state(request), list(batches.results(request))) == (ended, [])

    for late in (BatchState(status="in_progress", total=2), BatchState(status="cancelled", total=2)):
        batches.set_state(request, late)  # begun before the other one took over: its store hung in the midst
        assert batches.state(request) == ended


async def test_batch__two_replicas_at_once__share_many_batches_and_ask_each_line_once(start) -> None:
    unit = await start.unit()
    async with start(unit) as first, start(unit) as second:
        batches = [await one.send(jsonl(*(line(i) for i in range(5)))) for _ in range(6) for one in (first, second)]
        ended = [await second.ended(batch.id) for batch in batches]

    assert {batch.status for batch in ended} == {"completed"}
    assert len(unit.requests) == 12 * 5
