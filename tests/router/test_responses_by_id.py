"""Answers of /v1/responses, read and deleted by their ids."""

import httpx
import openai
import pytest
from fake_unit import FakeUnit

from router.errors import ResponseNotFound
from router.openai.foreign_body import message
from router.responses.response_store import ResponseStore
from router.responses.schemas import ResponseSchema

BODY = {"model": "demo/bytes", "input": "hi", "max_output_tokens": 4}


@pytest.mark.parametrize("stream", [False, True])
async def test_response__read_by_its_id__is_what_was_answered_until_it_is_deleted(serve, stream) -> None:
    served = await serve(FakeUnit())
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as sdk:
        answer = await sdk.responses.create(**BODY, stream=stream)
        said = [event async for event in answer][-1].response if stream else answer
        read = await sdk.responses.retrieve(said.id)
        await sdk.responses.delete(said.id)
        again = [
            sdk.responses.retrieve(said.id),
            sdk.responses.delete(said.id),
            sdk.responses.create(**BODY, previous_response_id=said.id),
        ]
        codes = [(404, "response_not_found")] * 2 + [(400, "previous_response_not_found")]
        for call, code in zip(again, codes, strict=True):
            with pytest.raises(openai.APIStatusError, match="is kept") as missing:
                await call
            assert (missing.value.status_code, missing.value.code) == code

    assert read.model_dump() == said.model_dump()
    assert ResponseSchema.model_validate(read.model_dump()).output[0]["type"] == "message"


async def test_response__of_another_key__is_not_there(serve) -> None:
    served = await serve(FakeUnit())
    ann, bob = served.headers_of_keys("ann", "bob")
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        path = "/v1/responses/" + (await http.post("/v1/responses", json=BODY, headers=ann)).json()["id"]
        asked = [
            await http.get(path),
            await http.get(path, headers=bob),
            await http.delete(path, headers=bob),
            await http.get(path, params={"stream": "true"}, headers=ann),
            await http.get(path, headers=ann),
            await http.delete(path, headers=ann),
        ]

    assert [reply.status_code for reply in asked] == [401, 404, 404, 400, 200, 200]
    assert asked[-1].json() == {"id": path.rpartition("/")[2], "object": "response", "deleted": True}


async def test_store__deleted_here__is_gone_at_other_gateways_and_no_late_copy_brings_it_back() -> None:
    here = ResponseStore()
    there = ResponseStore(lambda kept_id, owner: answered(here.encoded(kept_id, owner)))
    here.keep("resp_1", "me", [message("user", "hm")], document=b'{"id":"resp_1"}')
    (copy,) = here.fresh_copies()[1]
    there.take(copy)
    assert await there.document("resp_1", "me") == b'{"id":"resp_1"}'

    await there.delete("resp_1", "me")
    for deleted in there.fresh_copies()[1]:
        here.take(deleted)
    for store in (here, there):
        store.take(copy)
        with pytest.raises(ResponseNotFound):
            await store.document("resp_1", "me")
        with pytest.raises(ResponseNotFound):
            await store.messages("resp_1", "me")


async def answered(encoded: bytes | None) -> bytes | None:
    return encoded


async def test_input_tokens__any_body__is_what_the_response_takes(serve) -> None:
    served = await serve(FakeUnit())
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as sdk:
        first = await sdk.responses.create(**BODY, instructions="Be brief.")
        tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}
        asked = {"model": BODY["model"], "input": "And?", "tools": [tool], "previous_response_id": first.id}
        counted = await sdk.responses.input_tokens.count(**asked)
        response = await sdk.responses.create(**asked)
        with pytest.raises(openai.BadRequestError, match=r"No response 'resp_none' is kept"):
            await sdk.responses.input_tokens.count(**{**asked, "previous_response_id": "resp_none"})

    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == response.usage.input_tokens > first.usage.input_tokens
    assert len(served.units[0].requests) == 2


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_input_tokens__asked_as_if_it_were_an_id__is_posted_to_only(serve, method) -> None:
    served = await serve(FakeUnit())
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        reply = await client.request(method, "/v1/responses/input_tokens")

    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
