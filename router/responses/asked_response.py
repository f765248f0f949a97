"""A request to /v1/responses between its body and the chat."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from router.errors import InvalidRequest
from router.openai.chat import ChatCompletionRequest, ChatMessage
from router.openai.foreign_body import message
from router.openai.reply import Choice, ReplyHead, new_head
from router.request_terms import Caller
from router.responses.chat_of_responses import chat_of_responses, messages_of
from router.responses.conversations import Conversations, meant_items
from router.responses.input_items import InputItem
from router.responses.listed_items import with_new_ids
from router.responses.response_store import ResponseStore
from router.responses.responses_body import ResponsesBody, read_responses_body
from router.responses.responses_reply import ResponsesReply


@dataclass(frozen=True, slots=True)
class AskedResponse:
    body: ResponsesBody

    @classmethod
    def parse(cls, body: bytes) -> "AskedResponse":
        """Raises InvalidRequest."""
        return cls(read_responses_body(body))

    @property
    def model(self) -> str:
        return self.body.model

    @property
    def streams(self) -> bool:
        return bool(self.body.stream)

    async def resolved(self, store: ResponseStore, caller: Caller) -> "AskedResponse":
        """Returns the request with the items that it refers to. Raises ResponseNotFound, GatewaysSilent."""
        items = [] if isinstance(self.body.input, str) else self.body.input
        whole = await meant_items(items, store, caller.key_id)
        return self if whole is items else AskedResponse(msgspec.structs.replace(self.body, input=list(whole)))

    async def history(self, store: ResponseStore, caller: Caller) -> Sequence[ChatMessage]:
        """Returns what was said before.

        Raises InvalidRequest, ResponseNotFound, ConversationNotFound, GatewaysSilent.
        """
        body = self.body
        if body.conversation_id is None:
            return await store.messages(body.previous_response_id, caller.key_id)
        if body.previous_response_id is not None:
            raise InvalidRequest("'conversation' and 'previous_response_id' exclude each other.", param="conversation")
        found = await Conversations(store, caller.key_id).read(body.conversation_id, "conversation")
        return found.messages()

    def chat(self, history: Sequence[ChatMessage]) -> ChatCompletionRequest:
        """`history` is what was said before, as the store has it. Raises InvalidRequest."""
        return chat_of_responses(self.body, history)

    def head(self, model: str, caller: Caller) -> ReplyHead:
        return new_head("resp_", model, service_tier=caller.service_tier if self.body.service_tier else None)

    def reply(
        self, head: ReplyHead, history: Sequence[ChatMessage], store: ResponseStore, caller: Caller
    ) -> ResponsesReply:
        def keep(choice: Choice, answer: dict[str, Any]) -> None:
            if self.body.store is not False:
                is_kept = keep_answer(choice, answer)
                if self.body.background and not is_kept:
                    return  # it was cancelled, or deleted
            if self.body.conversation_id is not None:
                turn = [*with_new_ids(self.body.input), *answer["output"]]
                Conversations(store, caller.key_id).append(self.body.conversation_id, turn)

        def keep_answer(choice: Choice, answer: dict[str, Any]) -> bool:
            calls = [(call.call_id, call.name, call.arguments) for call in choice.tool_calls]
            said = message("assistant", choice.text, calls=calls, reasoning=choice.reasoning or None)
            items = {item["id"]: msgspec.convert(item, InputItem) for item in answer["output"]}
            conversation = [*history, *messages_of(self.body.input), said]
            return store.keep(head.reply_id, caller.key_id, conversation, items, msgspec.json.encode(answer))

        return ResponsesReply(head, self.body, keep)
