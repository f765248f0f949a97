"""A request to /v1/responses between its body and the chat."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from router.openai.chat import ChatCompletionRequest, ChatMessage
from router.openai.foreign_body import message
from router.openai.reply import Choice, new_head
from router.request_terms import Caller
from router.responses.chat_of_responses import chat_of_responses, messages_of
from router.responses.response_store import ResponseStore
from router.responses.responses_body import REFERENCE, InputItem, ResponsesBody, read_responses_body
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
        referred = dict.fromkeys(item.id or "" for item in items if item.type == REFERENCE)
        if not referred:
            return self
        meant = await store.items(referred, caller.key_id)
        whole = [meant[item.id or ""] if item.type == REFERENCE else item for item in items]
        return AskedResponse(msgspec.structs.replace(self.body, input=whole))

    def chat(self, history: Sequence[ChatMessage]) -> ChatCompletionRequest:
        """`history` is what was said before, as the store has it. Raises InvalidRequest."""
        return chat_of_responses(self.body, history)

    def reply(self, model: str, history: Sequence[ChatMessage], store: ResponseStore, caller: Caller) -> ResponsesReply:
        head = new_head("resp_", model, service_tier=caller.service_tier if self.body.service_tier else None)

        def keep(choice: Choice, answer: dict[str, Any]) -> None:
            if self.body.store is False:
                return
            calls = [(call.call_id, call.name, call.arguments) for call in choice.tool_calls]
            said = message("assistant", choice.text, calls=calls, reasoning=choice.reasoning or None)
            items = {item["id"]: msgspec.convert(item, InputItem) for item in answer["output"]}
            conversation = [*history, *messages_of(self.body), said]
            store.keep(head.reply_id, caller.key_id, conversation, items, msgspec.json.encode(answer))

        return ResponsesReply(head, self.body, keep)
