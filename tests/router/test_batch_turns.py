"""Whose batches are worked on first, and what a long one leaves in the store."""

import asyncio

import httpx
import openai
from batch_rig import Replica, eventually_ready, jsonl, line
from fake_unit import eventually

from router.access.api_keys import KeyEntry, KeyRing, make_key
from router.batches import batch_run
from router.batches.batch_worker import oldest_first


async def test_batches__one_key_has_many_long_ones__another_keys_is_worked_on_beside_them(start) -> None:
    ann, bob = make_key(), make_key()
    ring = KeyRing(
        [KeyEntry(key_id=key.key_id, name=name, hash=key.hash) for key, name in ((ann, "ann"), (bob, "bob"))]
    )
    async with start(await start.unit(token_gap_s=0.05), ring, ann.secret) as replica:
        await eventually_ready(replica)
        long = [await replica.send(jsonl(*(line(i, max_tokens=40) for i in range(50)))) for _ in range(10)]
        await eventually(lambda: len(start.workers[0]._running) == 8)
        async with openai.AsyncOpenAI(base_url=replica.sdk.base_url, api_key=bob.secret, max_retries=0) as other:
            bobs = Replica(replica.served, other)
            short = await bobs.ended((await bobs.send(jsonl(line(1)))).id)
        left = [await replica.sdk.batches.retrieve(batch.id) for batch in long]

    assert short.status == "completed"
    assert {batch.status for batch in left} <= {"validating", "in_progress"}


def test_open_batches__of_several_owners__oldest_first_whoever_made_them() -> None:
    found = [("ann", "batch_3"), ("ann", "batch_9"), ("bob", "batch_1")]
    assert [batch for _, batch in oldest_first(found)] == ["batch_1", "batch_3", "batch_9"]


def test_batch__takes_a_day__its_results_are_in_few_parts() -> None:
    worked_s, parts = 0.0, 0
    while worked_s < 24 * 3600:
        worked_s, parts = worked_s + batch_run.flush_after_s(worked_s, 2.0), parts + 1

    assert parts < 1000


async def test_batch__results_are_not_written_yet__its_figures_are_told(start, monkeypatch) -> None:
    monkeypatch.setattr(batch_run, "flush_after_s", lambda worked_s, flush_s: float("inf"))
    unit = await start.unit(token_gap_s=0.02)
    async with start(unit) as first:
        batch = await first.send(jsonl(*(line(number) for number in range(60))))
        async with asyncio.timeout(60):
            told = batch
            while not told.request_counts.completed:
                await asyncio.sleep(0.02)
                told = await first.sdk.batches.retrieve(batch.id)
    async with start(unit) as second:  # the first one let it go, and wrote all that it had
        ended = await second.ended(batch.id)
        results = await second.lines_of(ended.output_file_id)

    assert told.status == "in_progress"
    assert len(results) == 60
    assert len(unit.requests) <= 60 + 4, "only what was under way is asked again"


async def test_batch__its_input_is_deleted__what_was_answered_is_kept(start) -> None:
    unit = await start.unit(token_gap_s=0.02)
    async with start(unit) as first:
        batch = await first.send(jsonl(*(line(number) for number in range(60))))
        await eventually(lambda: len(unit.requests) >= 12)
        await first.sdk.files.delete(batch.input_file_id)
    async with start(unit) as second:
        ended = await second.ended(batch.id)
        results = await second.lines_of(ended.output_file_id)

    assert (ended.status, ended.errors.data[0].code) == ("failed", "input_file_not_found")
    assert 8 <= len(results) == ended.request_counts.completed


async def test_batch__under_way_and_ended__is_in_the_metrics(start) -> None:
    async with (
        start(await start.unit(token_gap_s=0.02)) as replica,
        httpx.AsyncClient(base_url=replica.served.url, timeout=60) as http,
    ):
        asked = [line(number) for number in range(20)] + [line(20, temperature=9)]
        batch = await replica.send(jsonl(*asked))
        await eventually(lambda: len(replica.served.units[0].requests) >= 4)
        during = (await http.get("/metrics")).text
        await replica.ended(batch.id)
        await eventually(lambda: not start.workers[0]._running)
        after = (await http.get("/metrics")).text

    assert "muxfleet_batches_running 1.0" in during
    assert 0 < float(during.partition("\nmuxfleet_batch_lines_left ")[2].split()[0]) <= 21
    for text in (
        "muxfleet_batches_running 0.0",
        "muxfleet_batch_lines_left 0.0",
        'muxfleet_batch_lines_total{outcome="completed"} 20.0',
        'muxfleet_batch_lines_total{outcome="failed"} 1.0',
    ):
        assert text in after
