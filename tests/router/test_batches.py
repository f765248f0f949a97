"""Batches as the unmodified OpenAI SDK meets them, on real gateways over a folder."""

import asyncio
import io
import time
from pathlib import Path

import httpx
import openai
import pytest
from batch_rig import CHAT, MODEL, jsonl, line, settings
from fake_unit import eventually
from prometheus_client import CollectorRegistry

from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.frames import Delta
from router.batches.batch_lease import BatchLease, LeaseWatch
from router.batches.batch_record import BatchRequest, BatchState
from router.batches.batch_run import BatchLost, BatchRun
from router.batches.batch_worker import _let_go
from router.batches.input_lines import InputLine
from router.batches.kept_batches import KeptBatches
from router.batches.kept_files import KeptFiles
from router.batches.object_store import ObjectStore, StoreThreads
from router.request_terms import Caller
from router.telemetry.metrics import BatchMetrics


async def test_batch__chat_completions_and_responses__every_line_has_one_result_by_its_id(start) -> None:
    prompts = {"/v1/completions": {"prompt": "hi"}, "/v1/responses": {"input": "hi", "max_output_tokens": 5}}
    prompts["/v1/embeddings"] = {"input": ["hi", "you"], "encoding_format": "base64"}
    async with start(await start.unit()) as replica:
        for endpoint in (CHAT, *prompts):
            asked = [line(i, endpoint, **prompts.get(endpoint, {})) for i in range(9)]
            for one in asked if endpoint in ("/v1/responses", "/v1/embeddings") else ():
                del one["body"]["max_tokens"]
                if "embeddings" in endpoint:
                    del one["body"]["temperature"]
            batch = await replica.send(jsonl(*asked), endpoint, metadata={"who": "me"})
            assert (batch.status, batch.object, batch.metadata) == ("validating", "batch", {"who": "me"})
            ended = await replica.ended(batch.id)

            assert ended.status == "completed", ended
            assert (ended.request_counts.total, ended.request_counts.completed, ended.request_counts.failed) == (
                9,
                9,
                0,
            )
            assert ended.model == MODEL
            assert ended.error_file_id is None
            assert ended.created_at <= ended.in_progress_at <= ended.finalizing_at <= ended.completed_at
            results = await replica.lines_of(ended.output_file_id)
            assert sorted(r["custom_id"] for r in results) == [f"request-{i}" for i in range(9)]
            for result in results:
                assert result["error"] is None
                assert result["response"]["status_code"] == 200
                assert result["response"]["body"]["model"] == MODEL
        output = await replica.sdk.files.retrieve(ended.output_file_id)
        assert output.purpose == "batch_output"
        assert (await anext(aiter(replica.sdk.batches.list(limit=2)))).id == ended.id


async def test_batch__responses_that_refer_to_an_item__are_told_that_it_is_not_here(start) -> None:
    async with start(await start.unit()) as replica:
        asked = line(1, "/v1/responses", input=[{"type": "item_reference", "id": "msg_1"}])
        del asked["body"]["max_tokens"]
        ended = await replica.ended((await replica.send(jsonl(asked), "/v1/responses")).id)

        (result,) = await replica.lines_of(ended.error_file_id)
        assert result["response"]["status_code"] == 404


async def test_batch__work_begins_at_once__its_making_is_answered_as_made(start, monkeypatch) -> None:
    add = KeptBatches.add

    def add_and_begin(self: KeptBatches, request: BatchRequest) -> None:
        add(self, request)
        self.set_state(request, BatchState(status="in_progress"))

    monkeypatch.setattr(KeptBatches, "add", add_and_begin)
    async with start(await start.unit()) as replica:
        batch = await replica.send(jsonl(line(1)))

        assert batch.status == "validating"


async def test_batch__lines_that_are_refused__are_in_the_error_file_with_their_status(start) -> None:
    wrong = [line(1), line(2, temperature=9), line(3, model="no/such"), line(4, stream=True), line(5, tempratur=1)]
    async with start(await start.unit()) as replica:
        ended = await replica.ended((await replica.send(jsonl(*wrong))).id)
        errors = {r["custom_id"]: r["response"] for r in await replica.lines_of(ended.error_file_id)}

        assert ended.status == "completed"
        assert (ended.request_counts.completed, ended.request_counts.failed) == (1, 4)
        assert {name: said["status_code"] for name, said in errors.items()} == {
            "request-2": 400,
            "request-3": 404,
            "request-4": 400,
            "request-5": 400,
        }
        assert errors["request-3"]["body"]["error"]["code"] == "model_not_found"
        assert "did you mean temperature" in errors["request-5"]["body"]["error"]["message"]
        assert len(await replica.lines_of(ended.output_file_id)) == 1


@pytest.mark.parametrize(
    ("data", "faults"),
    [
        (b"", [("empty_file", None)]),
        (b"\n \n", [("empty_file", None)]),
        (jsonl(line(1)) + b"{oops\n\n[]\n" + jsonl(line(2)), [("invalid_json_line", 2), ("invalid_request", 4)]),
        (jsonl(line(1), line(2), line(1)), [("duplicate_custom_id", 3)]),
        (jsonl({**line(1), "method": "GET"}), [("invalid_method", 1)]),
        (jsonl(line(1), {**line(2), "url": "/v1/x"}), [("mismatched_endpoint", 2)]),
        (jsonl({**line(1), "custom_id": ""}), [("invalid_custom_id", 1)]),
        (jsonl(line(1), {**line(2), "body": {}}), [("invalid_request", 2)]),
        (jsonl(*(line(i) for i in range(21))), [("too_many_tasks", None)]),
        (b"\xff\xfe{}\n", [("invalid_json_line", 1)]),
        (b'{"a":' * 50_000 + b"\n", [("invalid_json_line", 1)]),
        (b'"' + b"x" * 300_000 + b'"\n', [("line_too_long", 1), ("invalid_json_line", 2)]),
    ],
)  # fmt: skip
async def test_batch__bad_lines__fail_it_and_are_told_by_their_numbers(start, data, faults) -> None:
    unit = await start.unit()
    async with start(unit, max_lines=20, max_line_bytes=250_004) as replica:
        ended = await replica.ended((await replica.send(data)).id)

    assert ended.status == "failed"
    assert [(fault.code, fault.line) for fault in ended.errors.data] == faults
    assert unit.requests == []


async def test_batch__is_cancelled__ends_soon_and_every_line_has_a_result(start) -> None:
    async with start(await start.unit(token_gap_s=0.05)) as replica:
        batch = await replica.send(jsonl(*(line(i, max_tokens=40) for i in range(30))))
        await eventually(lambda: len(replica.served.units[0].requests) >= 6)
        assert (await replica.sdk.batches.cancel(batch.id)).status == "cancelling"
        ended = await replica.ended(batch.id)
        results = await replica.lines_of(ended.output_file_id)
        left = await replica.lines_of(ended.error_file_id)

        assert ended.status == "cancelled"
        assert ended.cancelling_at <= ended.cancelled_at
        assert {r["error"]["code"] for r in left} == {"batch_cancelled"}
        assert sorted(r["custom_id"] for r in [*results, *left]) == sorted(f"request-{i}" for i in range(30))
        assert (ended.request_counts.completed, ended.request_counts.failed) == (len(results), len(left))
        with pytest.raises(openai.BadRequestError, match="cannot be cancelled any more"):
            await replica.sdk.batches.cancel(batch.id)


def run_of(folder: Path, ask, places: asyncio.Semaphore, lease: BatchLease | None = None, **changes) -> BatchRun:
    store = ObjectStore(str(folder))
    return BatchRun(
        BatchRequest(
            id="batch_" + "0" * 32,
            owner="ann",
            tenant="ann",
            endpoint=CHAT,
            input_file_id="file",
            completion_window="24h",
            created_at=0,
            expires_at=2**40,
        ),
        lease or BatchLease.take(store, "leases", "me", now_s=0.0, lease_s=30.0, watch=LeaseWatch()),
        batches=KeptBatches(store),
        files=KeptFiles(store),
        settings=settings(folder, **changes),
        ask=ask,
        places=places,
        threads=StoreThreads(),
        metrics=BatchMetrics(CollectorRegistry()),
    )


class NotedLease:
    """Stands where BatchLease would."""

    number = 1

    def __init__(self) -> None:
        self.renewed_s = []

    def is_held(self) -> bool:
        return True

    def renew(self, *, now_s: float, lease_s: float) -> bool:
        self.renewed_s.append(now_s)
        return True


async def test_batch__clock_is_set_back__lease_is_renewed_as_before(tmp_path, monkeypatch) -> None:
    """It says when it ends by that clock: another replica would else wait for as long if this one died."""
    lease = NotedLease()
    run = run_of(tmp_path, None, asyncio.Semaphore(1), lease, lease_s=0.03, flush_s=0.01)
    keeping = asyncio.create_task(run._keep())
    await eventually(lambda: lease.renewed_s)

    now_s = time.time
    monkeypatch.setattr(time, "time", lambda: now_s() - 5 * 3600)

    await eventually(lambda: lease.renewed_s[-1] < lease.renewed_s[0])
    keeping.cancel()


@pytest.mark.parametrize("is_ended", [False, True], ids=["goes on", "is ended"])
async def test_batch__its_replica_stood_while_another_came_to_its_end__that_end_stays(tmp_path, is_ended) -> None:
    """It was told as in progress for ever: nobody works on a batch that was closed."""
    store = ObjectStore(str(tmp_path))
    batches, its_end = KeptBatches(store), BatchState(status="completed", total=1, completed=1)

    async def ask(body: bytes, caller: Caller, owner: str) -> bytes:
        time.sleep(0.2)  # noqa: ASYNC251  the process stands, and its lease ends
        assert batches.take("ann", request.id, "another", 60.0) is not None
        batches.set_state(request, its_end)
        batches.close(request)
        return b"{}"

    lease = batches.take("ann", "batch_" + "0" * 32, "me", 0.1)
    run = run_of(tmp_path, ask, asyncio.Semaphore(1), lease, lease_s=0.1, flush_s=30.0)
    request = run._request
    data = io.BytesIO(jsonl(line(1)))
    run._files.add("ann", data, filename="asked.jsonl", purpose="batch", keep_s=None, file_id="file")
    if is_ended:
        await run._ask_line(InputLine(1, "request-1", b"{}"))
        await _let_go(run, lease, run._threads)
    else:
        with pytest.raises(BatchLost):
            await run.run()

    assert batches.state(request) == its_end
    assert not list(batches.results(request))


async def test_batch__a_place_comes_free_as_it_is_cancelled__is_there_for_other_batches(tmp_path) -> None:
    places = asyncio.Semaphore(1)

    async def ask(body: bytes, caller: Caller, owner: str) -> bytes:
        run._ends_as = "cancelled"  # while the second line waits for the place of this one
        return b"{}"

    run = run_of(tmp_path, ask, places, flush_s=30.0)
    await run._ask_lines(iter([InputLine(number, f"line-{number}", b"{}") for number in (1, 2, 3)]), set())

    assert not places.locked()


async def test_batch__its_window_is_over__ends_as_expired(start, monkeypatch) -> None:
    async with start(await start.unit(token_gap_s=0.05)) as replica:
        unit = replica.served.units[0]
        batch = await replica.send(jsonl(*(line(i, max_tokens=40) for i in range(30))))
        await eventually(lambda: len(unit.requests) >= 4)
        now_s = time.time
        monkeypatch.setattr(time, "time", lambda: now_s() + 24 * 3600 + 1)
        ended = await replica.ended(batch.id)
        left = await replica.lines_of(ended.error_file_id)

    assert ended.status == "expired"
    assert {r["error"]["code"] for r in left} == {"batch_expired"}


async def test_batch__waits_for_room__is_asked_at_low_priority_until_it_succeeds(start) -> None:
    refusals = [Delta(0, 0, "", [], finish=FinishReason.ERROR, error="the model left", retryable=True)] * 2
    unit = await start.unit(fail=lambda _: refusals.pop() if refusals else None)
    async with start(unit) as replica:
        ended = await replica.ended((await replica.send(jsonl(line(1)))).id)

    assert ended.status == "completed"
    assert all(request.gives_way for request in unit.requests)


async def test_batch__that_cannot_be__is_a_400_or_404_that_names_the_field(start) -> None:
    async with start(await start.unit()) as replica, httpx.AsyncClient(base_url=replica.served.url, timeout=60) as http:
        file = await replica.sdk.files.create(file=("x.jsonl", jsonl(line(1))), purpose="batch")
        good = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        for changes, status, param in (
            ({"input_file_id": "file-none"}, 404, "id"),
            ({"input_file_id": "../../etc/passwd"}, 404, "id"),
            ({"endpoint": "/v1/images"}, 400, "endpoint"),
            ({"completion_window": "1d"}, 400, "completion_window"),
            ({"completion_window": "999h"}, 400, "completion_window"),
            ({"metadata": {"k": "v" * 600}}, 400, "metadata"),
            ({"metadate": {}}, 400, "metadate"),
            ({"endpoint": 3}, 400, "endpoint"),
        ):
            reply = await http.post("/v1/batches", json={**good, **changes})
            assert (reply.status_code, reply.json()["error"]["param"]) == (status, param), changes
        assert (await http.get("/v1/batches/batch_none")).status_code == 404
        assert (await http.get("/v1/batches", params={"limit": "0"})).json()["error"]["param"] == "limit"
        assert (await http.get("/v1/files", params={"after": "x"})).json()["error"]["param"] == "after"
        assert (await http.get("/v1/files/%2e%2e%2fopen")).status_code == 404
