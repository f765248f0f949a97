"""POST /v1/chat/completions: the reply."""

from collections.abc import Sequence
from typing import Any

from pdmux_actor.serving.frames import TokenLogprob
from router.generation import Output
from router.openai.reply import LOWEST_LOGPROB, Choice, EventEncoder, ReplyHead, Usage, document, finish_name


class ChatReply:
    def __init__(self, head: ReplyHead, *, with_logprobs: bool, usage_is_asked: bool) -> None:
        self._head = head
        self._with_logprobs = with_logprobs
        self._encoder = EventEncoder(head, "chat.completion.chunk", usage_is_asked=usage_is_asked)
        self._opened: set[int] = set()

    def events(self, index: int, output: Output, usage: Usage | None) -> bytes:
        events = b""
        if index not in self._opened:
            self._opened.add(index)
            events += self._encoder.choice(self._chunk(index, {"role": "assistant", "content": ""}, None), usage)
        if output.text or output.logprobs:
            chunk = self._chunk(index, {"content": output.text}, None)
            if self._with_logprobs:
                chunk["logprobs"] = chat_logprobs(output.logprobs)
            events += self._encoder.choice(chunk, usage)
        if output.finish is not None:
            events += self._encoder.choice(self._chunk(index, {}, finish_name(output.finish)), usage)
        return events

    def usage_event(self, usage: Usage) -> bytes:
        return self._encoder.usage(usage)

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        bodies = []
        for index, choice in enumerate(choices):
            assert choice.finish is not None, "a document is made of finished choices"
            bodies.append(
                {
                    "index": index,
                    "message": {"role": "assistant", "content": choice.text, "refusal": None},
                    "logprobs": chat_logprobs(choice.logprobs) if self._with_logprobs else None,
                    "finish_reason": finish_name(choice.finish),
                }
            )
        return document(self._head, "chat.completion", bodies, usage)

    @staticmethod
    def _chunk(index: int, delta: dict[str, str], finish: str | None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def chat_logprobs(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    content = [
        {
            "token": entry.token,
            "logprob": max(entry.logprob, LOWEST_LOGPROB),
            "bytes": entry.bytes,
            "top_logprobs": [
                {"token": top.token, "logprob": max(top.logprob, LOWEST_LOGPROB), "bytes": top.bytes}
                for top in entry.top
            ],
        }
        for entry in logprobs
    ]
    return {"content": content, "refusal": None}
