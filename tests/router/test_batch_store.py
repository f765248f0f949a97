"""Batches behind a URL, and a place that fails, hangs or is full."""

import asyncio
import io
import os
import time

import fsspec
import httpx
import pytest
from batch_rig import CHAT, eventually_ready, jsonl, line
from bucket_filesystem import Bucket, LibraryError, register
from fake_unit import eventually

from router.batches.batch_body import BatchBody, new_batch
from router.batches.batch_record import batch_id_at
from router.batches.kept_batches import KeptBatches
from router.batches.object_store import ObjectStore, StoreUnusable


@pytest.fixture
def bucket():
    made = Bucket()
    yield made
    made.goes_on.set()


async def test_batch__behind_a_url_whose_files_come_in_ranges__is_done(start, bucket) -> None:
    async with start(await start.unit(), url=register(bucket)) as replica:
        await eventually_ready(replica)
        data = jsonl(*(line(number) for number in range(6)))
        batch = await replica.ended((await replica.send(data)).id)
        results = await replica.lines_of(batch.output_file_id)
        read = await replica.sdk.files.content(batch.input_file_id)

    assert (batch.status, len(results)) == ("completed", 6)
    assert read.content == data


async def test_files__store_is_out_of_reach_for_a_while__503_that_names_no_place_of_ours(
    start, bucket, monkeypatch, caplog
) -> None:
    monkeypatch.setattr("router.batches.batch_service._RETRY_S", 0.05)
    bucket.is_down = True
    async with (
        start(await start.unit(), url=register(bucket)) as replica,
        httpx.AsyncClient(base_url=replica.served.url, timeout=60) as http,
    ):
        async with asyncio.timeout(30):
            reply = await http.get("/v1/files")
            while "the gateway's log says why" not in reply.json()["error"]["message"]:
                await asyncio.sleep(0.02)
                reply = await http.get("/v1/files")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "batches_unavailable")
        assert "LibraryError" in reasons_of(caplog), "the log says why"
        caplog.clear()
        bucket.is_down = False
        await eventually_ready(replica)
        bucket.is_down = True
        lost = await http.get("/v1/files")
        bucket.is_down = False
        batch = await replica.ended((await replica.send(jsonl(line(1)))).id)

    assert (lost.status_code, lost.json()["error"]["code"]) == (503, "batches_unavailable")
    assert not [told for told in (reply.text, lost.text) if "LibraryError" in told or "://" in told]
    assert "LibraryError" in reasons_of(caplog)
    assert batch.status == "completed"


def reasons_of(caplog) -> str:
    return "".join(getattr(record, "reason", "") for record in caplog.records)


async def test_files__store_hangs__503_in_time_and_all_else_goes_on(start, bucket) -> None:
    async with (
        start(await start.unit(), url=register(bucket), answer_timeout_s=0.5) as replica,
        httpx.AsyncClient(base_url=replica.served.url, timeout=60) as http,
    ):
        await eventually_ready(replica)
        bucket.goes_on.clear()
        replies = await asyncio.gather(*(http.get("/v1/files") for _ in range(40)))
        metrics = await http.get("/metrics")
        chat = await http.post(CHAT, json=line(1)["body"])
        bucket.goes_on.set()

    assert {(reply.status_code, reply.json()["error"]["code"]) for reply in replies} == {(503, "batches_unavailable")}
    assert "has not answered within" in replies[0].json()["error"]["message"]
    assert (metrics.status_code, chat.status_code) == (200, 200)


def test_store__place_cannot_be_written_to__is_told_at_its_opening(tmp_path, bucket) -> None:
    bucket.is_down = True
    for url in (register(bucket), "nosuch://bucket/x"):
        with pytest.raises(StoreUnusable, match=url):
            ObjectStore(url)


async def test_files__content_is_out_of_reach__is_an_error_and_no_answer_that_breaks_off(start, tmp_path) -> None:
    async with (
        start(await start.unit()) as replica,
        httpx.AsyncClient(base_url=replica.served.url, timeout=60) as http,
    ):
        await eventually_ready(replica)
        file = await replica.sdk.files.create(file=("x.jsonl", jsonl(line(1))), purpose="batch")
        whole = await http.get(f"/v1/files/{file.id}/content")
        (content,) = tmp_path.glob(f"kept/*/files/{file.id}.content")
        content.unlink()
        lost = await http.get(f"/v1/files/{file.id}/content")

    assert (whole.status_code, whole.content) == (200, jsonl(line(1)))
    assert (lost.status_code, lost.json()["error"]["code"]) == (503, "batches_unavailable")


@pytest.mark.parametrize("error", [LibraryError("authentication failed"), TypeError("no option 'secure'")])
async def test_files__filesystem_is_not_to_be_had_at_first__is_tried_again(start, bucket, monkeypatch, error) -> None:
    """As that of SFTP, which connects when it is made, and tells what fails by errors of its own."""
    monkeypatch.setattr("router.batches.batch_service._RETRY_S", 0.05)
    url, errors = register(bucket), [error] * 2
    make = fsspec.url_to_fs

    def fails_at_first(url: str, **options: object) -> object:
        if errors:
            raise errors.pop()
        return make(url, **options)

    monkeypatch.setattr(fsspec, "url_to_fs", fails_at_first)
    async with start(await start.unit(), url=url) as replica:
        async with asyncio.timeout(30):
            await eventually_ready(replica)

    assert not errors


class Killed(BaseException):
    """Ends what it meets, as a process ends that is killed."""


@pytest.mark.parametrize("ends", [OSError("no space left"), Killed()])
@pytest.mark.parametrize("at", ["open/", "ann/batches"])
def test_batch__its_making_ends_in_the_midst__is_not_listed_as_waiting_for_ever(
    tmp_path, monkeypatch, at, ends
) -> None:
    batches = KeptBatches(ObjectStore(str(tmp_path)))
    body = BatchBody(input_file_id="file", endpoint=CHAT, completion_window="24h")
    made = new_batch(body, [CHAT], owner="ann", tenant="ann", now_s=1.0)
    write = ObjectStore.write

    def ended(store: ObjectStore, path: str, data: bytes) -> None:
        if path.startswith(at):
            raise ends
        write(store, path, data)

    monkeypatch.setattr(ObjectStore, "write", ended)
    with pytest.raises(type(ends)):
        batches.add(made)

    assert batches.ids("ann") == []
    for owner, batch_id in batches.open_batches():
        batches.drop_unmade(owner, batch_id)
    assert batches.open_batches() == []


async def test_batch__is_half_made__is_forgotten_after_an_hour_and_not_before(start, tmp_path) -> None:
    folder = tmp_path / "kept" / "open"
    folder.mkdir(parents=True)
    old, fresh = (folder / f"ann.{batch_id_at(made_s)}" for made_s in (time.time() - 3700, time.time()))
    for marker in (old, fresh):
        marker.touch()
    async with start(await start.unit()) as replica:
        await eventually(lambda: not old.exists())
        ended = await replica.ended((await replica.send(jsonl(line(1)))).id)

    assert ended.status == "completed"
    assert fresh.exists()


def test_store__what_it_keeps__is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch) -> None:
    """Else it may be empty, or cut off, after the power failed."""
    store, sync, synced = ObjectStore(str(tmp_path)), os.fsync, []

    def noted(descriptor: int) -> None:
        synced.append((sorted(store.names("")), os.fstat(descriptor).st_size))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    store.write("a", b"12")
    store.create("b", b"345")
    store.put("c", io.BytesIO(b"6789"))

    assert synced == [([], 2), (["a"], 3), (["a", "b"], 4)]
