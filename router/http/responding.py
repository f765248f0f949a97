"""Answers a request to /v1/responses, of a client or of a batch's line."""

from collections.abc import Sequence
from dataclasses import dataclass

from router.openai.chat import ChatCompletionRequest, ChatMessage
from router.openai.reply import ReplyHead
from router.request_terms import Caller
from router.responses.asked_response import AskedResponse
from router.responses.named_as_sent import named_as_sent
from router.responses.response_store import ResponseStore
from router.serving.gateway import Gateway
from router.serving.response import RenewedResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyResponse:
    """A request that is checked as far as its body goes. `caller` has the priority that it asks for."""

    asked: AskedResponse
    history: Sequence[ChatMessage]
    chat: ChatCompletionRequest
    caller: Caller

    async def answer(self, gateway: Gateway, store: ResponseStore, head: ReplyHead | None = None) -> RenewedResponse:
        """Raises a RouterError if it cannot be accepted."""
        asked, caller = self.asked, self.caller
        with named_as_sent(asked.body):
            return await gateway.chat(
                self.chat,
                caller,
                lambda model: asked.reply(head or asked.head(model, caller), self.history, store, caller),
            )


async def ready(
    asked: AskedResponse, caller: Caller, store: ResponseStore, *, may_ask_priority: bool = True
) -> ReadyResponse:
    """`may_ask_priority`: what the body says of it holds; that of a batch's line is the batch's.

    Raises a RouterError.
    """
    asked = await asked.resolved(store, caller)
    history = await asked.history(store, caller)
    with named_as_sent(asked.body):
        chat = asked.chat(history)
    if may_ask_priority:
        caller = caller.asking(chat.asked_priority, None)
    return ReadyResponse(asked=asked, history=history, chat=chat, caller=caller)
