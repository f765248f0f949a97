"""Files as the unmodified OpenAI SDK meets them, and whose they are."""

import asyncio

import httpx
import openai
import pytest
from batch_rig import CHAT, Replica, eventually_ready, jsonl, line

from router.access.api_keys import KeyEntry, KeyRing, make_key


async def test_files__sdk__upload_list_read_and_delete(start) -> None:
    async with start(await start.unit()) as replica:
        await eventually_ready(replica)
        data = jsonl(line(1))
        file = await replica.sdk.files.create(file=("dir/asked.jsonl", data), purpose="batch")

        assert (file.bytes, file.filename, file.purpose, file.status) == (
            len(data),
            "asked.jsonl",
            "batch",
            "processed",
        )
        assert (await replica.sdk.files.retrieve(file.id)).id == file.id
        assert (await replica.sdk.files.content(file.id)).content == data
        second = await replica.sdk.files.create(file=("b.jsonl", b"x" * 3_000_000), purpose="batch")
        assert {f.id async for f in replica.sdk.files.list(limit=1)} == {file.id, second.id}
        assert (await replica.sdk.files.delete(file.id)).deleted is True
        with pytest.raises(openai.NotFoundError, match="No such File"):
            await replica.sdk.files.retrieve(file.id)
        assert [f.id async for f in replica.sdk.files.list()] == [second.id]


async def test_files_and_batches__of_other_keys__are_not_there(start) -> None:
    ann, bob = make_key(), make_key()
    ring = KeyRing(
        [
            KeyEntry(key_id=ann.key_id, name="ann", hash=ann.hash, requests_per_minute=500),
            KeyEntry(key_id=bob.key_id, name="bob", hash=bob.hash, models=frozenset({"other"})),
        ]
    )
    async with start(await start.unit(), ring, ann.secret) as replica:
        batch = await replica.send(jsonl(line(1)))
        ended = await replica.ended(batch.id)
        async with openai.AsyncOpenAI(base_url=replica.sdk.base_url, api_key=bob.secret, max_retries=0) as other:
            for call in (
                other.files.retrieve(ended.output_file_id),
                other.files.content(ended.input_file_id),
                other.files.delete(ended.input_file_id),
                other.batches.retrieve(batch.id),
                other.batches.cancel(batch.id),
                other.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"),
            ):
                with pytest.raises(openai.NotFoundError):
                    await call
            assert [f async for f in other.files.list()] == []
            assert [b async for b in other.batches.list()] == []
            bobs = Replica(replica.served, other)
            forbidden = await bobs.ended((await bobs.send(jsonl(line(1)))).id)
            assert forbidden.status == "completed"
            (refused,) = await bobs.lines_of(forbidden.error_file_id)
            assert refused["response"]["status_code"] == 403


async def test_upload__that_cannot_be__is_refused_by_what_is_wrong(start) -> None:
    async with start(await start.unit(), max_file_bytes=1000) as replica:
        await eventually_ready(replica)
        async with httpx.AsyncClient(base_url=replica.served.url, timeout=60) as http:
            file = {"file": ("x.jsonl", b"{}")}
            large = {"file": ("x.jsonl", b"x" * 200_000)}
            replies = [
                await http.post("/v1/files", json={}),
                await http.post("/v1/files", files=file),
                await http.post("/v1/files", files=file, data={"purpose": "fine-tune"}),
                await http.post("/v1/files", files={"other": ("x", b"")}, data={"purpose": "batch"}),
                await http.post("/v1/files", files=large, data={"purpose": "batch"}),
                await http.post("/v1/files", files={"file": ("x", b"y" * 1001)}, data={"purpose": "batch"}),
                await http.post("/v1/files", content=b"--x", headers={"content-type": "multipart/form-data"}),
                await http.post(
                    "/v1/files", content=b"junk", headers={"content-type": "multipart/form-data; boundary=x"}
                ),
            ]

    assert [(r.status_code, r.json()["error"]["param"]) for r in replies] == [
        (415, None),
        (400, "purpose"),
        (400, "purpose"),
        (400, "file"),
        (413, None),
        (413, None),
        (400, None),
        (400, None),
    ]


async def test_files__without_a_place_that_can_be_used__503_that_says_why(start, tmp_path) -> None:
    (tmp_path / "kept").write_text("a file where a folder should be")
    async with start(await start.unit()) as replica, httpx.AsyncClient(base_url=replica.served.url, timeout=60) as http:
        async with asyncio.timeout(30):
            reply = await http.get("/v1/files")
            while "kept" not in reply.json()["error"]["message"].partition("gateway.")[0]:
                await asyncio.sleep(0.02)
                reply = await http.get("/v1/files")
        chat = await http.post(CHAT, json=line(1)["body"])

    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "batches_unavailable")
    assert "gateway.batches.folder" in reply.json()["error"]["message"]
    assert chat.status_code == 200
