"""Responses in the background: made, read, followed and cancelled by their ids."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

from fastapi import FastAPI
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from router.access.access_control import AccessGrant
from router.errors import InvalidRequest
from router.http.generation_endpoint import caller_of
from router.http.responding import ready
from router.http.streaming import EventStream, EventStyle
from router.openai.document import responses_of
from router.responses.asked_response import AskedResponse
from router.responses.background import Answer, BackgroundResponses
from router.responses.response_items import response_object
from router.responses.responses_reply import queued_events
from router.responses.schemas import ResponseSchema
from router.serving.gateway import Gateway

RESPONSES_STYLE = EventStyle(done=b"", path="/v1/responses", names_errors=True)
_PATIENCE_S = 600.0  # for a unit, or its turn: nobody sits and waits
_REFUSED_WITHIN_S = 1.0  # what takes longer to be found wrong is told by the response that failed


async def answer_in_background(
    request: Request,
    gateway: Gateway,
    asked: AskedResponse,
    who: AccessGrant,
    background: BackgroundResponses,
) -> Response:
    """Answers with the response as it begins, or with its events. Raises what is wrong with it at once."""
    store = background.store
    caller = caller_of(request, who)
    caller = caller if caller.ttft_s is not None else replace(caller, ttft_s=_PATIENCE_S)
    response = await ready(asked, caller, store)
    head = asked.head(asked.model, response.caller)
    accepting: asyncio.Future[Answer] = asyncio.ensure_future(response.answer(gateway, store, head))
    await asyncio.wait((accepting,), timeout=_REFUSED_WITHIN_S)
    if accepting.done():
        accepting.result()
    queued = response_object(head, response.asked.body, "queued", [], None)
    events = queued_events(queued) if asked.streams else None
    document = background.start(queued, caller.key_id, accepting, events)
    if events is None:
        return Response(document, media_type="application/json")
    return _stream(request, gateway, await background.follow(head.reply_id, caller.key_id, -1))


def add_background_routes(app: FastAPI, gateway: Gateway, background: BackgroundResponses) -> None:
    @app.get("/v1/responses/{response_id}", **responses_of(ResponseSchema, 400, 404, 503))
    async def retrieve_response(response_id: str, request: Request) -> Response:
        owner = gateway.access.identify(request.headers).caller.key_id
        document = await background.read(response_id, owner)
        if request.query_params.get("stream", "false").lower() in ("false", "0", ""):
            return Response(document, media_type="application/json")
        after = _starting_after(request.query_params)
        return _stream(request, gateway, await background.follow(response_id, owner, after))

    @app.post("/v1/responses/{response_id}/cancel", **responses_of(ResponseSchema, 400, 404, 503))
    async def cancel_response(response_id: str, request: Request) -> Response:
        owner = gateway.access.identify(request.headers).caller.key_id
        return Response(await background.cancel(response_id, owner), media_type="application/json")


def _starting_after(query: QueryParams) -> int:
    said = query.get("starting_after", "")
    if said and not (said.isascii() and said.isdigit() and len(said) <= 9):
        raise InvalidRequest("'starting_after' must be the 'sequence_number' of an event.", param="starting_after")
    return int(said or -1)


def _stream(request: Request, gateway: Gateway, events: AsyncGenerator[bytes, None]) -> EventStream:
    return EventStream(
        events,
        request_id=request.state.request_id,
        keep_alive_s=gateway.limits.keep_alive_s,
        write_timeout_s=gateway.limits.write_timeout_s,
        headers={},
        style=RESPONSES_STYLE,
    )
