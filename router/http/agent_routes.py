"""Routes of the APIs that agents speak, each an adapter around the chat."""

from collections.abc import Sequence

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from router.anthropic.chat_of_messages import chat_of_messages, read_messages_body
from router.anthropic.messages_body import MessagesBody
from router.anthropic.messages_reply import MessagesReply
from router.anthropic.schemas import AnthropicError, MessageSchema, TokenCount
from router.errors import InvalidRequest, MethodNotAllowed
from router.http.background_routes import RESPONSES_STYLE, add_background_routes, answer_in_background
from router.http.conversation_routes import CONVERSATION_BODIES, add_conversation_routes
from router.http.generation_endpoint import answer, answer_asked, entered, parsed
from router.http.pages import page_of_items
from router.http.responding import ready
from router.http.streaming import EventStyle
from router.openai.chat import ChatCompletionRequest
from router.openai.document import body_of, responses_of
from router.openai.reply import new_head
from router.request_terms import Caller
from router.responses.asked_response import AskedResponse
from router.responses.background import BackgroundResponses
from router.responses.listed_items import items_of_messages
from router.responses.named_as_sent import named_as_sent
from router.responses.responses_body import ResponsesBody
from router.responses.schemas import InputTokenCount, ItemList, ResponseDeleted, ResponseSchema
from router.serving.gateway import Gateway
from router.serving.response import RenewedResponse

_MESSAGES = EventStyle(done=b"", path="/v1/messages", names_errors=True)
AGENT_BODIES: Sequence[type[msgspec.Struct]] = (MessagesBody, ResponsesBody, *CONVERSATION_BODIES)


def add_agent_routes(app: FastAPI, gateway: Gateway, responses: BackgroundResponses) -> None:
    _add_messages(app, gateway)
    _add_responses(app, gateway, responses)
    add_background_routes(app, gateway, responses)
    add_conversation_routes(app, gateway, responses.store)


def _add_responses(app: FastAPI, gateway: Gateway, responses: BackgroundResponses) -> None:
    store = responses.store

    @app.post("/v1/responses", openapi_extra=body_of(ResponsesBody), **responses_of(ResponseSchema))
    async def create_response(request: Request) -> Response:
        asked, who = await entered(request, gateway, AskedResponse.parse)
        if asked.body.background:
            return await answer_in_background(request, gateway, asked, who, responses)
        return await answer_asked(request, gateway, asked, who, _respond, RESPONSES_STYLE)

    @app.post(
        "/v1/responses/input_tokens",
        openapi_extra=body_of(ResponsesBody),
        **responses_of(InputTokenCount, streams=False),
    )
    async def count_input_tokens(request: Request) -> InputTokenCount:
        asked, who = await entered(request, gateway, AskedResponse.parse)
        counted = await ready(asked, who.caller, store, may_ask_priority=False)
        with named_as_sent(asked.body):
            return InputTokenCount(input_tokens=len((await gateway.prompt_of(counted.chat)).token_ids))

    @app.api_route("/v1/responses/input_tokens", methods=["GET", "DELETE"], include_in_schema=False)
    async def refuse_as_id(request: Request) -> None:
        raise MethodNotAllowed(method=request.method, path=request.url.path, allow="POST")

    @app.get("/v1/responses/{response_id}/input_items", **responses_of(ItemList, 400, 404, 503))
    async def list_input_items(response_id: str, request: Request) -> Response:
        owner = gateway.access.identify(request.headers).caller.key_id
        went_by = await store.messages_before(response_id, owner)
        return page_of_items(items_of_messages(response_id, went_by), request.query_params)

    @app.delete("/v1/responses/{response_id}", **responses_of(ResponseDeleted, 404, 503))
    async def delete_response(response_id: str, request: Request) -> ResponseDeleted:
        await store.delete(response_id, gateway.access.identify(request.headers).caller.key_id)
        return ResponseDeleted(id=response_id)

    async def _respond(asked: AskedResponse, caller: Caller) -> RenewedResponse:
        return await (await ready(asked, caller, store)).answer(gateway, store)


def _add_messages(app: FastAPI, gateway: Gateway) -> None:
    @app.post("/v1/messages", openapi_extra=body_of(MessagesBody), **responses_of(MessageSchema, error=AnthropicError))
    async def create_message(request: Request) -> Response:
        return await answer(request, gateway, _messages_request, _message, _MESSAGES)

    @app.post(
        "/v1/messages/count_tokens",
        openapi_extra=body_of(MessagesBody),
        **responses_of(TokenCount, error=AnthropicError, streams=False),
    )
    async def count_tokens(request: Request) -> TokenCount:
        who = gateway.access.identify(request.headers)
        asked = await parsed(request, gateway, lambda body: chat_of_messages(read_messages_body(body)))
        gateway.access.enter(who, asked.model)
        return TokenCount(input_tokens=len((await gateway.prompt_of(asked)).token_ids))

    async def _message(request: ChatCompletionRequest, caller: Caller) -> RenewedResponse:
        with_thinking = request.include_reasoning is not False
        return await gateway.chat(
            request, caller, lambda model: MessagesReply(new_head("msg_", model), with_thinking=with_thinking)
        )


def _messages_request(body: bytes) -> ChatCompletionRequest:
    read = read_messages_body(body)
    if read.max_tokens is None:
        message = "Missing required parameter: 'max_tokens'."
        raise InvalidRequest(message, param="max_tokens", code="missing_required_parameter")
    return chat_of_messages(read)
