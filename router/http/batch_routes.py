"""Files and batches of OpenAI's API. Each belongs to the API key that sent it; without keys, to everyone."""

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from router.batches.batch_body import LONGEST_EXPIRY_S, SHORTEST_EXPIRY_S, BatchBody, new_batch
from router.batches.batch_record import TERMINAL, BatchRequest, batch_document
from router.batches.batch_schemas import BatchList, BatchSchema, FileDeleted, FileList, FileSchema
from router.batches.batch_service import BatchService
from router.batches.kept_files import KeptFile, least_of
from router.errors import BatchNotFound, FileNotKept, InvalidRequest
from router.http.generation_endpoint import body_of_request
from router.http.pages import json_of, listed, page_of
from router.http.uploads import Upload, uploaded
from router.openai.document import body_of, responses_of
from router.openai.foreign_body import decoded
from router.serving.gateway import Gateway

BATCH_BODIES: Sequence[type[msgspec.Struct]] = (BatchBody,)
_EVERYONE = "everyone"
_UPLOAD: Mapping[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "contentMediaType": "application/octet-stream"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": SHORTEST_EXPIRY_S,
                            "maximum": LONGEST_EXPIRY_S,
                        },
                    },
                }
            }
        },
    }
}


@dataclass(frozen=True, slots=True)
class _Owner:
    key_id: str
    tenant: str


def add_batch_routes(app: FastAPI, gateway: Gateway, service: BatchService) -> None:
    def owner_of(request: Request) -> _Owner:
        who = gateway.access.identify(request.headers)
        key_id = _EVERYONE if who.entry is None else who.entry.key_id
        request.state.tenant = who.caller.tenant
        return _Owner(key_id, who.caller.tenant)

    _add_files(app, service, owner_of)
    _add_batches(app, gateway, service, owner_of)


def _add_files(app: FastAPI, service: BatchService, owner_of: Callable[[Request], _Owner]) -> None:
    @app.post("/v1/files", openapi_extra=dict(_UPLOAD), **responses_of(FileSchema, 400, 413, 415, 503))
    async def upload_file(request: Request) -> Response:
        owner, settings = owner_of(request), service.settings
        files = service.files
        async with uploaded(request, max_bytes=settings.max_file_bytes, timeout_s=settings.upload_timeout_s) as upload:
            await _check_room(service, owner, upload)
            kept = await service.copying(
                files.add,
                owner.key_id,
                upload.file,
                filename=upload.filename,
                purpose=upload.purpose,
                keep_s=least_of(settings.keep_s, upload.expires_after_s),
            )
        return json_of(kept.to_json())

    @app.get("/v1/files", **responses_of(FileList, 400, 503))
    async def list_files(request: Request) -> Response:
        owner, asked = owner_of(request), request.query_params
        found = await service.blocking(service.files.listed, owner.key_id)
        purpose = asked.get("purpose")
        of_purpose = {file.id: file for file in found if purpose in (None, file.purpose)}
        page, has_more = page_of(list(of_purpose), asked, most=10_000, default=10_000)
        return listed([of_purpose[file_id].to_json() for file_id in page], has_more=has_more)

    @app.get("/v1/files/{file_id}", **responses_of(FileSchema, 404, 503))
    async def retrieve_file(file_id: str, request: Request) -> Response:
        return json_of((await _file(service, owner_of(request), file_id)).to_json())

    @app.delete("/v1/files/{file_id}", **responses_of(FileDeleted, 404, 503))
    async def delete_file(file_id: str, request: Request) -> Response:
        if not await service.blocking(service.files.delete, owner_of(request).key_id, file_id):
            raise FileNotKept(file_id=file_id)
        return json_of({"id": file_id, "object": "file", "deleted": True})

    @app.get(
        "/v1/files/{file_id}/content",
        response_class=Response,
        responses={
            **responses_of(FileSchema, 404, 503)["responses"],
            200: {"content": {"application/octet-stream": {}}},
        },
    )
    async def file_content(file_id: str, request: Request) -> Response:
        owner = owner_of(request)
        kept = await _file(service, owner, file_id)
        chunks = service.files.chunks(owner.key_id, file_id)
        first = await service.blocking(next, chunks, b"")  # what fails now can still be told
        return StreamingResponse(
            _sent(service, first, chunks),
            media_type="application/octet-stream",
            headers={"content-length": str(kept.bytes)},
        )


def _add_batches(app: FastAPI, gateway: Gateway, service: BatchService, owner_of: Callable[[Request], _Owner]) -> None:
    @app.post("/v1/batches", openapi_extra=body_of(BatchBody), **responses_of(BatchSchema, 400, 404, 413, 415, 503))
    async def create_batch(request: Request) -> Response:
        owner = owner_of(request)
        body = decoded(await body_of_request(request, gateway), BatchBody)
        made = new_batch(body, service.endpoints, owner=owner.key_id, tenant=owner.tenant, now_s=time.time())
        await _file(service, owner, made.input_file_id)
        reply = json_of(await _document(service, made))  # as it is made: once it is kept, work on it may begin at once
        await service.blocking(service.batches.add, made)
        service.look()
        return reply

    @app.get("/v1/batches", **responses_of(BatchList, 400, 503))
    async def list_batches(request: Request) -> Response:
        owner = owner_of(request)
        ids = await service.blocking(service.batches.ids, owner.key_id)
        page, has_more = page_of(ids, request.query_params, most=100, default=20)
        found = [await service.blocking(service.batches.request, owner.key_id, batch_id) for batch_id in page]
        documents = [await _document(service, batch) for batch in found if batch is not None]
        return listed(documents, has_more=has_more)

    @app.get("/v1/batches/{batch_id}", **responses_of(BatchSchema, 404, 503))
    async def retrieve_batch(batch_id: str, request: Request) -> Response:
        return json_of(await _document(service, await _batch(service, owner_of(request), batch_id)))

    @app.post("/v1/batches/{batch_id}/cancel", **responses_of(BatchSchema, 400, 404, 503))
    async def cancel_batch(batch_id: str, request: Request) -> Response:
        batch = await _batch(service, owner_of(request), batch_id)
        state = await service.blocking(service.batches.state, batch)
        if state.status in TERMINAL:
            raise InvalidRequest(f"Batch {batch_id} is {state.status}: it cannot be cancelled any more.", param="id")
        await service.blocking(service.batches.cancel, batch)
        return json_of(await _document(service, batch))


async def _file(service: BatchService, owner: _Owner, file_id: str) -> KeptFile:
    kept = await service.blocking(service.files.get, owner.key_id, file_id)
    if kept is None:
        raise FileNotKept(file_id=file_id)
    return kept


async def _batch(service: BatchService, owner: _Owner, batch_id: str) -> BatchRequest:
    batch = await service.blocking(service.batches.request, owner.key_id, batch_id)
    if batch is None:
        raise BatchNotFound(batch_id=batch_id)
    return batch


async def _document(service: BatchService, batch: BatchRequest) -> dict[str, Any]:
    state = await service.blocking(service.batches.state, batch)
    return batch_document(batch, state, await service.blocking(service.batches.cancelling_at, batch))


async def _check_room(service: BatchService, owner: _Owner, upload: Upload) -> None:
    most_bytes = service.settings.max_key_bytes
    if most_bytes is None:
        return
    held_bytes = sum(file.bytes for file in await service.blocking(service.files.listed, owner.key_id))
    if held_bytes + upload.num_bytes > most_bytes:
        message = (
            f"The files of this API key have {held_bytes} bytes, of {most_bytes} that they may have: this one has "
            f"{upload.num_bytes}. Delete some (DELETE /v1/files/{{id}})."
        )
        raise InvalidRequest(message, param="file", code="files_quota_exceeded")


async def _sent(service: BatchService, first: bytes, chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    chunk = first
    while chunk:
        yield chunk
        chunk = await service.blocking(next, chunks, b"")
