"""Answers a request to /v1/responses, of a client or of a batch's line."""

from router.request_terms import Caller
from router.responses.asked_response import AskedResponse
from router.responses.named_as_sent import named_as_sent
from router.responses.response_store import ResponseStore
from router.serving.gateway import Gateway
from router.serving.response import RenewedResponse


async def respond(
    gateway: Gateway, asked: AskedResponse, caller: Caller, store: ResponseStore, *, may_ask_priority: bool
) -> RenewedResponse:
    """`may_ask_priority`: what the body says of it holds; that of a batch's line is the batch's."""
    asked = await asked.resolved(store, caller)
    history = await asked.history(store, caller)
    with named_as_sent(asked.body):
        chat = asked.chat(history)
        if may_ask_priority:
            caller = caller.asking(chat.asked_priority, None)
        return await gateway.chat(chat, caller, lambda model: asked.reply(model, history, store, caller))
