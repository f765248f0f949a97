"""Conversations of OpenAI's API, each of the API key that made it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from router.http.generation_endpoint import body_of_request
from router.http.pages import json_of, listed, page_of_items
from router.openai.document import body_of, responses_of
from router.openai.foreign_body import decoded
from router.responses.conversation_bodies import ConversationBody, ConversationChange, ConversationItems
from router.responses.conversations import Conversations
from router.responses.input_items import told_items
from router.responses.response_store import ResponseStore
from router.responses.schemas import ConversationDeleted, ConversationSchema, ItemList, ItemSchema
from router.serving.gateway import Gateway

CONVERSATION_BODIES: Sequence[type[msgspec.Struct]] = (ConversationBody, ConversationChange, ConversationItems)
_CHANGES = (400, 404, 413, 415, 503)

BodyT = TypeVar("BodyT", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Reads requests: whose they are, and their bodies."""

    gateway: Gateway
    store: ResponseStore

    def conversations(self, request: Request) -> Conversations:
        return Conversations(self.store, self.gateway.access.identify(request.headers).caller.key_id)

    async def body(self, request: Request, kind: type[BodyT]) -> BodyT:
        body = await body_of_request(request, self.gateway)
        async with self.gateway.large_bodies:
            return decoded(body, kind)


def add_conversation_routes(app: FastAPI, gateway: Gateway, store: ResponseStore) -> None:
    asked = _Asked(gateway, store)
    _add_conversations(app, asked)
    _add_items(app, asked)


def _add_conversations(app: FastAPI, asked: _Asked) -> None:
    @app.post(
        "/v1/conversations", openapi_extra=body_of(ConversationBody), **responses_of(ConversationSchema, *_CHANGES)
    )
    async def create_conversation(request: Request) -> Response:
        conversations = asked.conversations(request)
        body = await asked.body(request, ConversationBody)
        return json_of((await conversations.create(told_items(body.items or []), body.metadata or {})).shown())

    @app.get("/v1/conversations/{conversation_id}", **responses_of(ConversationSchema, 404, 503))
    async def retrieve_conversation(conversation_id: str, request: Request) -> Response:
        return json_of((await asked.conversations(request).read(conversation_id)).shown())

    @app.post(
        "/v1/conversations/{conversation_id}",
        openapi_extra=body_of(ConversationChange),
        **responses_of(ConversationSchema, *_CHANGES),
    )
    async def update_conversation(conversation_id: str, request: Request) -> Response:
        conversations = asked.conversations(request)
        body = await asked.body(request, ConversationChange)
        found = await conversations.read(conversation_id)
        found.set_metadata(body.metadata or {})
        conversations.keep(found)
        return json_of(found.shown())

    @app.delete("/v1/conversations/{conversation_id}", **responses_of(ConversationDeleted, 404, 503))
    async def delete_conversation(conversation_id: str, request: Request) -> Response:
        await asked.conversations(request).delete(conversation_id)
        return json_of({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


def _add_items(app: FastAPI, asked: _Asked) -> None:
    path = "/v1/conversations/{conversation_id}/items"

    @app.post(path, openapi_extra=body_of(ConversationItems), **responses_of(ItemList, *_CHANGES))
    async def create_items(conversation_id: str, request: Request) -> Response:
        conversations = asked.conversations(request)
        body = await asked.body(request, ConversationItems)
        return listed(await conversations.add(conversation_id, told_items(body.items)), has_more=False)

    @app.get(path, **responses_of(ItemList, 400, 404, 503))
    async def list_items(conversation_id: str, request: Request) -> Response:
        return page_of_items((await asked.conversations(request).read(conversation_id)).items, request.query_params)

    @app.get(path + "/{item_id}", **responses_of(ItemSchema, 404, 503))
    async def retrieve_item(conversation_id: str, item_id: str, request: Request) -> Response:
        return json_of((await asked.conversations(request).read(conversation_id)).item(item_id))

    @app.delete(path + "/{item_id}", **responses_of(ConversationSchema, 404, 503))
    async def delete_item(conversation_id: str, item_id: str, request: Request) -> Response:
        conversations = asked.conversations(request)
        found = await conversations.read(conversation_id)
        found.remove(item_id)
        conversations.keep(found)
        return json_of(found.shown())
