"""Conversations that a client goes on with by the id of the last answer: in memory, the oldest are forgotten."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from router.errors import ResponseNotFound
from router.openai.messages import ChatMessage

_MESSAGE_BYTES = 512  # of one beside its text
_MESSAGES = TypeAdapter(list[ChatMessage])

AskOthers = Callable[[str, str], Awaitable[bytes | None]]
"""Asks the fleet's other gateways for what `ResponseStore.encoded` says there: response id, owner. None: none keeps
it. Raises GatewaysSilent.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    owner: str
    messages: tuple[ChatMessage, ...]
    size_bytes: int


async def _nobody(response_id: str, owner: str) -> bytes | None:
    return None


class ResponseStore:
    """Keeps what this gateway has answered. What it has not, it asks the others for: any of them may get the next turn
    of a conversation.
    """

    def __init__(
        self,
        ask_others: AskOthers = _nobody,
        *,
        max_responses: int = 4096,
        max_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._ask_others = ask_others
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

    async def messages(self, response_id: str | None, owner: str) -> tuple[ChatMessage, ...]:
        """None before the first answer. Raises ResponseNotFound, GatewaysSilent."""
        if response_id is None:
            return ()
        found = self._found(response_id, owner)
        if found is None:
            encoded = await self._ask_others(response_id, owner)
            found = None if encoded is None else tuple(_MESSAGES.validate_json(encoded))
        if found is None:
            raise ResponseNotFound(response_id=response_id)
        return found

    def encoded(self, response_id: str, owner: str) -> bytes | None:
        """Tells another gateway the messages, as JSON; None: they are not here, or not for this owner."""
        found = self._found(response_id, owner)
        return None if found is None else _MESSAGES.dump_json(list(found), exclude_none=True)

    def _found(self, response_id: str, owner: str) -> tuple[ChatMessage, ...] | None:
        kept = self._kept.get(response_id)
        if kept is None or kept.owner != owner:
            return None
        self._kept.move_to_end(response_id)
        return kept.messages


def _characters(message: ChatMessage) -> int:
    calls = sum(len(call.function.arguments) for call in message.tool_calls or ())
    return len(message.text) + len(message.reasoning_content or "") + calls
