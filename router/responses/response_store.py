"""Conversations that a client goes on with by the id of the last answer: in memory, the oldest are forgotten."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from router.errors import ResponseNotFound
from router.openai.messages import ChatMessage

_MESSAGE_BYTES = 512  # of one beside its text


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    owner: str
    messages: tuple[ChatMessage, ...]
    size_bytes: int


class ResponseStore:
    def __init__(self, *, max_responses: int = 4096, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._size_bytes = 0

    def keep(self, response_id: str, owner: str, messages: Sequence[ChatMessage]) -> None:
        """`owner` alone may go on with it: an API key's id, empty without keys."""
        size_bytes = sum(_MESSAGE_BYTES + 4 * _characters(message) for message in messages)
        if size_bytes > self._max_bytes:
            return
        self._kept[response_id] = _Kept(owner=owner, messages=tuple(messages), size_bytes=size_bytes)
        self._size_bytes += size_bytes
        while len(self._kept) > self._max_responses or self._size_bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._size_bytes -= oldest.size_bytes

    def messages(self, response_id: str | None, owner: str) -> tuple[ChatMessage, ...]:
        """None before the first answer. Raises ResponseNotFound."""
        if response_id is None:
            return ()
        kept = self._kept.get(response_id)
        if kept is None or kept.owner != owner:
            raise ResponseNotFound(response_id=response_id)
        self._kept.move_to_end(response_id)
        return kept.messages


def _characters(message: ChatMessage) -> int:
    calls = sum(len(call.function.arguments) for call in message.tool_calls or ())
    return len(message.text) + len(message.reasoning_content or "") + calls
