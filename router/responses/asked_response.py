"""A request to /v1/responses between its body and the chat."""

from collections.abc import Sequence
from dataclasses import dataclass

from router.access.caller import Caller
from router.openai.chat import ChatCompletionRequest
from router.openai.foreign_body import message
from router.openai.messages import ChatMessage
from router.openai.reply import Choice, new_head
from router.responses.chat_of_responses import chat_of_responses, messages_of
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

    def chat(self, history: Sequence[ChatMessage]) -> ChatCompletionRequest:
        """`history` is what was said before, as the store has it. Raises InvalidRequest."""
        return chat_of_responses(self.body, history)

    def reply(self, model: str, history: Sequence[ChatMessage], store: ResponseStore, caller: Caller) -> ResponsesReply:
        head = new_head("resp", model, service_tier=caller.service_tier if self.body.service_tier else None)

        def keep(choice: Choice) -> None:
            if self.body.store is False:
                return
            calls = [(call.call_id, call.name, call.arguments) for call in choice.tool_calls]
            said = message("assistant", choice.text, calls=calls, reasoning=choice.reasoning or None)
            store.keep(head.reply_id, caller.key_id, [*history, *messages_of(self.body), said])

        return ResponsesReply(head, self.body, keep)
