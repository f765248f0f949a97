"""Conversations that a client goes on with by the id of the last answer: in memory, the oldest are forgotten."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec
from pydantic import TypeAdapter

from router.errors import ResponseNotFound
from router.openai.chat import ChatMessage
from router.responses.responses_body import InputItem

_MESSAGE_BYTES = 512  # of one beside its text
_MESSAGES = TypeAdapter(list[ChatMessage])

AskOthers = Callable[[str, str], Awaitable[bytes | None]]
"""Asks the fleet's other gateways for what `ResponseStore.encoded` says there: id of a response or of an item, owner.
None: none keeps it. Raises GatewaysSilent.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    response_id: str
    owner: str
    messages: tuple[ChatMessage, ...]
    items: Mapping[str, InputItem]
    size_bytes: int


class _Told(msgspec.Struct):
    """What one gateway tells another; `messages` are JSON."""

    response_id: str
    messages: msgspec.Raw
    items: dict[str, InputItem]


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
        self._response_of_item: dict[str, str] = {}
        self._size_bytes = 0

    def keep(
        self,
        response_id: str,
        owner: str,
        messages: Sequence[ChatMessage],
        items: Mapping[str, InputItem] = MappingProxyType({}),
    ) -> None:
        """`owner` alone may go on with it: an API key's id, empty without keys. `items` are the answer's, by their ids,
        as a client sends them back.
        """
        size_bytes = sum(_MESSAGE_BYTES + 4 * _characters(message) for message in messages)
        if size_bytes > self._max_bytes or response_id in self._kept:
            return
        self._kept[response_id] = _Kept(
            response_id=response_id, owner=owner, messages=tuple(messages), items=items, size_bytes=size_bytes
        )
        self._response_of_item.update(dict.fromkeys(items, response_id))
        self._size_bytes += size_bytes
        while len(self._kept) > self._max_responses or self._size_bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._size_bytes -= oldest.size_bytes
            for item_id in oldest.items:
                self._response_of_item.pop(item_id, None)

    async def messages(self, response_id: str | None, owner: str) -> tuple[ChatMessage, ...]:
        """None before the first answer. Raises ResponseNotFound, GatewaysSilent."""
        if response_id is None:
            return ()
        found = await self._found_anywhere(response_id, owner)
        if found is None or found.response_id != response_id:
            raise ResponseNotFound(kept_id=response_id, param="previous_response_id")
        return found.messages

    async def items(self, item_ids: Collection[str], owner: str) -> Mapping[str, InputItem]:
        """Returns items of answers by their ids. Raises ResponseNotFound, GatewaysSilent."""
        found: dict[str, InputItem] = {}
        for item_id in item_ids:
            kept = await self._found_anywhere(item_id, owner)
            if kept is None or item_id not in kept.items:
                raise ResponseNotFound(kept_id=item_id, param="input")
            found[item_id] = kept.items[item_id]
        return found

    def encoded(self, kept_id: str, owner: str) -> bytes | None:
        """Tells another gateway the answer of that id, or with an item of that id, and what was said before it.

        None: it is not here, or not for this owner.
        """
        found = self._found(kept_id, owner)
        if found is None:
            return None
        messages = msgspec.Raw(_MESSAGES.dump_json(list(found.messages), exclude_none=True))
        return msgspec.json.encode(_Told(response_id=found.response_id, messages=messages, items=dict(found.items)))

    async def _found_anywhere(self, kept_id: str, owner: str) -> _Kept | None:
        """What another gateway tells is kept here, too: the answer's other items are likely to be asked for next."""
        found = self._found(kept_id, owner)
        if found is not None:
            return found
        encoded = await self._ask_others(kept_id, owner)
        if encoded is None:
            return None
        told = msgspec.json.decode(encoded, type=_Told)
        messages = _MESSAGES.validate_json(bytes(memoryview(told.messages)))
        self.keep(told.response_id, owner, messages, told.items)
        return self._found(kept_id, owner)

    def _found(self, kept_id: str, owner: str) -> _Kept | None:
        response_id = self._response_of_item.get(kept_id, kept_id)
        kept = self._kept.get(response_id)
        if kept is None or kept.owner != owner:
            return None
        self._kept.move_to_end(response_id)
        return kept


def _characters(message: ChatMessage) -> int:
    calls = sum(len(call.function.arguments) for call in message.tool_calls or ())
    return len(message.text) + len(message.reasoning_content or "") + calls
