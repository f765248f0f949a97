"""Files and batches that are not kept for ever, and how much a key may keep."""

import time

import httpx
import msgspec
import openai
import pytest
from batch_rig import CHAT, eventually_ready, jsonl, line
from fake_unit import eventually

DAY_S = 86400


@pytest.fixture
def clock(monkeypatch):
    """`clock.append(s)` sets the time of day so far ahead."""
    ahead_s = [0.0]
    now_s = time.time
    monkeypatch.setattr(time, "time", lambda: now_s() + ahead_s[-1])
    return ahead_s


async def test_files_and_batches__time_is_over__are_gone(start, clock, tmp_path) -> None:
    async with start(await start.unit(), keep_s=30 * DAY_S, sweep_s=0.05) as replica:
        await eventually_ready(replica)
        batch = await replica.ended((await replica.send(jsonl(line(1)))).id)
        file = await replica.sdk.files.retrieve(batch.output_file_id)
        assert file.expires_at == pytest.approx(file.created_at + 30 * DAY_S, abs=1)

        clock.append(29 * DAY_S)
        late = await replica.ended((await replica.send(jsonl(line(2)))).id)
        clock.append(30 * DAY_S + 60)

        with pytest.raises(openai.NotFoundError):
            await replica.sdk.files.retrieve(batch.output_file_id)
        kept = tmp_path / "kept" / "everyone"
        await eventually(lambda: len(list((kept / "files").glob("file-*.json"))) == 2)
        await eventually(lambda: len(list((kept / "batches").iterdir())) == 1)
        assert [one.id async for one in replica.sdk.batches.list()] == [late.id]
        assert {one.id async for one in replica.sdk.files.list()} == {late.input_file_id, late.output_file_id}
        assert len(list((kept / "files").iterdir())) == 4  # with their contents


async def test_file__open_batch_reads_it__stays_until_that_has_ended(start, clock) -> None:
    async with start(await start.unit(token_gap_s=0.02), keep_s=3600.0, sweep_s=0.02) as replica:
        await eventually_ready(replica)
        batch = await replica.send(jsonl(*(line(number) for number in range(40))))
        await eventually(lambda: len(replica.served.units[0].requests) >= 4)
        clock.append(2 * 3600)
        ended = await replica.ended(batch.id)

    assert ended.status == "completed"
    assert ended.request_counts.completed == 40


async def test_file__client_asks_for_less__expires_then(start) -> None:
    less = {"anchor": "created_at", "seconds": 3600}
    async with start(await start.unit(), keep_s=30.0 * DAY_S) as replica:
        await eventually_ready(replica)
        asked = {"file": ("x.jsonl", jsonl(line(1))), "purpose": "batch"}
        file = await replica.sdk.files.create(**asked, expires_after=less)
        longest = await replica.sdk.files.create(**asked, expires_after={**less, "seconds": 2_592_000})
        batch = await replica.sdk.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", output_expires_after=less
        )
        output = await replica.sdk.files.retrieve((await replica.ended(batch.id)).output_file_id)

    assert [one.expires_at - one.created_at for one in (file, longest, output)] == [3600, 30 * DAY_S, 3600]


async def test_file__never_expires__says_so(start) -> None:
    async with start(await start.unit()) as replica:
        await eventually_ready(replica)
        file = await replica.sdk.files.create(file=("x.jsonl", jsonl(line(1))), purpose="batch")

    assert file.expires_at is None


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({"expires_after[seconds]": "7200"}, "expires_after[anchor]"),
        ({"expires_after[anchor]": "last_active_at", "expires_after[seconds]": "7200"}, "expires_after[anchor]"),
        ({"expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "60"}, "expires_after[seconds]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "1e5"}, "expires_after[seconds]"),
    ],
)
async def test_upload__expires_after_that_cannot_be__names_the_field(start, sent, param) -> None:
    async with (
        start(await start.unit()) as replica,
        httpx.AsyncClient(base_url=replica.served.url, timeout=60) as http,
    ):
        await eventually_ready(replica)
        reply = await http.post("/v1/files", files={"file": ("x", b"{}")}, data={"purpose": "batch", **sent})

    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("after", [{"anchor": "now", "seconds": 3600}, {"anchor": "created_at", "seconds": 1}, {}])
async def test_batch__output_expires_after_that_cannot_be__names_the_field(start, after) -> None:
    async with start(await start.unit()) as replica:
        with pytest.raises(openai.BadRequestError) as refused:
            await replica.send(jsonl(line(1)), output_expires_after=after)

    assert refused.value.param.startswith("output_expires_after")


async def test_upload__key_has_used_up_its_bytes__is_refused_until_it_deletes_some(start) -> None:
    async with start(await start.unit(), max_key_bytes=1000) as replica:
        await eventually_ready(replica)
        first = await replica.sdk.files.create(file=("a", b"x" * 800), purpose="batch")
        with pytest.raises(openai.BadRequestError, match="800 bytes, of 1000") as refused:
            await replica.sdk.files.create(file=("b", b"x" * 201), purpose="batch")
        await replica.sdk.files.delete(first.id)
        second = await replica.sdk.files.create(file=("b", b"x" * 201), purpose="batch")

    assert refused.value.code == "files_quota_exceeded"
    assert second.bytes == 201


def test_kept_file__of_a_version_that_knew_no_expiry__is_read() -> None:
    from router.batches.kept_files import KeptFile

    old = b'{"id":"file-1","bytes":1,"created_at":1,"filename":"x","purpose":"batch"}'
    assert msgspec.json.decode(old, type=KeptFile).expires_at is None
