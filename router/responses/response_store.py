"""Keeps conversations that a client goes on with by the id of the last answer: in memory, the oldest are forgotten."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

import msgspec
from pydantic import TypeAdapter

from router.errors import ConversationNotFound, GatewaysSilent, ResponseNotFound
from router.openai.chat import ChatMessage
from router.openai.large_body import kept_messages
from router.responses.responses_body import InputItem

_MESSAGE_BYTES = 512  # of one beside its text
_PAGE_BYTES = 1024 * 1024  # read in some 10 ms
_NO_DOCUMENT = msgspec.Raw(b"null")
_MESSAGES = TypeAdapter(list[ChatMessage])

AskOthers = Callable[[str, str], Awaitable[bytes | None]]
"""Asks the fleet's other gateways for what `ResponseStore.encoded` says there: id of a response or of an item, owner.
None: none keeps it. Raises GatewaysSilent.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """`document` is the answer as the client got it, or a conversation, of which each change is a `revision`; an answer
    has none but 0. One that `is_deleted` stays as an empty place: no copy of it that is still on its way comes back.
    """

    response_id: str
    owner: str
    messages: tuple[ChatMessage, ...]
    items: Mapping[str, InputItem]
    document: bytes
    is_deleted: bool
    size_bytes: int
    revision: int = 0


class _Told(msgspec.Struct):
    """What one gateway tells another; `messages` and `document` are JSON, which releases before did not tell."""

    response_id: str
    messages: msgspec.Raw
    items: dict[str, InputItem]
    owner: str = ""
    document: msgspec.Raw = _NO_DOCUMENT
    is_deleted: bool = False
    revision: int = 0


class _Revision(msgspec.Struct):
    revision: int = 0


def newest(copies: Sequence[bytes]) -> bytes | None:
    """Returns that copy, of what several gateways told of one thing; None of none."""
    return max(copies, key=lambda copy: msgspec.json.decode(copy, type=_Revision).revision, default=None)


async def _nobody(response_id: str, owner: str) -> bytes | None:
    return None


class ResponseStore:
    """Keeps what this gateway has answered, and copies of what others have. What it has not, it asks the others for:
    any of them may get the next turn of a conversation before its copy has come.
    """

    def __init__(
        self,
        ask_others: AskOthers = _nobody,
        *,
        max_responses: int = 16_384,
        max_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._ask_others = ask_others
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._response_of_item: dict[str, str] = {}
        self._size_bytes = 0
        self._fresh: dict[str, None] = {}  # ids of what other gateways were not told of yet

    def keep(
        self,
        response_id: str,
        owner: str,
        messages: Sequence[ChatMessage],
        items: Mapping[str, InputItem] = MappingProxyType({}),
        document: bytes = b"",
    ) -> None:
        """`owner` alone may go on with it: an API key's id, empty without keys. `items` are the answer's, by their ids,
        as a client sends them back; `document` is all of it. Other gateways are told of it: see `fresh_copies`.
        """
        if self._keep(response_id, owner, messages, items, document):
            self._fresh[response_id] = None

    def _keep(
        self,
        response_id: str,
        owner: str,
        messages: Sequence[ChatMessage],
        items: Mapping[str, InputItem],
        document: bytes,
        *,
        is_deleted: bool = False,
        revision: int = 0,
    ) -> bool:
        size_bytes = sum(_MESSAGE_BYTES + 4 * _characters(message) for message in messages) + len(document)
        known = self._kept.get(response_id)
        if size_bytes > self._max_bytes or (known is not None and (known.is_deleted or known.revision >= revision)):
            return False
        if known is not None:
            self._drop(response_id)
        self._kept[response_id] = _Kept(
            response_id=response_id,
            owner=owner,
            messages=tuple(messages),
            items=items,
            document=document,
            is_deleted=is_deleted,
            size_bytes=size_bytes,
            revision=revision,
        )
        self._response_of_item.update(dict.fromkeys(items, response_id))
        self._size_bytes += size_bytes
        while len(self._kept) > self._max_responses or self._size_bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))
        return response_id in self._kept

    def _drop(self, response_id: str) -> None:
        dropped = self._kept.pop(response_id)
        self._size_bytes -= dropped.size_bytes
        self._fresh.pop(response_id, None)
        for item_id in dropped.items:
            self._response_of_item.pop(item_id, None)

    # ---- copies for other gateways ----

    def ids(self) -> list[str]:
        """Returns those of all responses; the one that was not used for longest comes first."""
        return list(self._kept)

    def copies(self, response_ids: Iterable[str]) -> list[bytes]:
        """Returns the first of these for another gateway's `take`, as many as make a page; what is not kept is left
        out.
        """
        found: list[bytes] = []
        room_bytes = _PAGE_BYTES
        for kept in (self._kept[i] for i in response_ids if i in self._kept):
            if room_bytes <= 0:
                break
            found.append(_encoded(kept))
            room_bytes -= len(found[-1])
        return found

    def fresh_copies(self) -> tuple[tuple[_Kept, ...], list[bytes]]:
        """Returns what no other gateway was told of, for `were_told`, as much as makes a page, and that page."""
        page = self.copies(self._fresh)
        return tuple(self._kept[i] for i in islice(self._fresh, len(page))), page

    def were_told(self, told: Iterable[_Kept]) -> None:
        """Takes them off what is to be told, but for what was deleted or changed meanwhile."""
        for kept in told:
            if self._kept.get(kept.response_id) is kept:
                self._fresh.pop(kept.response_id, None)

    def take(self, copy: bytes, *, owner: str | None = None) -> None:
        """Keeps what another gateway's `copies` made. `owner`, where it is known: releases before told none."""
        told = msgspec.json.decode(copy, type=_Told)
        owner = told.owner if owner is None else owner
        if told.is_deleted:
            self._delete(told.response_id, owner)
        elif told.response_id not in self._kept or told.revision:
            document = b"" if told.document == _NO_DOCUMENT else bytes(told.document)
            messages = kept_messages(told.messages)
            self._keep(told.response_id, owner, messages, told.items, document, revision=told.revision)

    # ---- conversations ----

    def put(self, conversation_id: str, owner: str, document: bytes) -> bool:
        """Keeps this instead of what it was. False: there is no room for it, or it was deleted."""
        known = self._kept.get(conversation_id)
        revision = 1 if known is None else known.revision + 1
        is_kept = self._keep(conversation_id, owner, (), {}, document, revision=revision)
        if is_kept:
            self._fresh[conversation_id] = None
        return is_kept

    def here(self, conversation_id: str, owner: str) -> bytes | None:
        """Returns the conversation as this gateway knows it."""
        found = self._found(conversation_id, owner)
        return None if found is None or not found.revision else found.document

    async def conversation(self, conversation_id: str, owner: str, param: str) -> bytes:
        """Returns it as it is now: other gateways, of which any may have changed it, are asked each time.

        Raises ConversationNotFound, GatewaysSilent.
        """
        try:
            copy = await self._ask_others(conversation_id, owner)
        except GatewaysSilent:
            if self.here(conversation_id, owner) is None:
                raise
            copy = None
        if copy is not None:
            self.take(copy, owner=owner)
        found = self.here(conversation_id, owner)
        if found is None:
            raise ConversationNotFound(kept_id=conversation_id, param=param)
        return found

    def forget(self, conversation_id: str, owner: str) -> None:
        """Has other gateways told to, too: see `fresh_copies`."""
        self._delete(conversation_id, owner)
        self._fresh[conversation_id] = None

    # ---- answers ----

    async def messages(self, response_id: str | None, owner: str) -> tuple[ChatMessage, ...]:
        """None before the first answer. Raises ResponseNotFound, GatewaysSilent."""
        if response_id is None:
            return ()
        found = await self._found_anywhere(response_id, owner)
        if found is None or found.response_id != response_id or found.revision:
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

    async def document(self, response_id: str, owner: str) -> bytes:
        """Returns the answer as JSON. Raises ResponseNotFound, GatewaysSilent."""
        return (await self._answer(response_id, owner)).document

    async def messages_before(self, response_id: str, owner: str) -> Sequence[ChatMessage]:
        """Returns what the answer went by. Raises ResponseNotFound, GatewaysSilent."""
        return (await self._answer(response_id, owner)).messages[:-1]

    async def delete(self, response_id: str, owner: str) -> None:
        """Forgets it, and has other gateways told to: see `fresh_copies`. Raises ResponseNotFound, GatewaysSilent."""
        await self._answer(response_id, owner)
        self.forget(response_id, owner)

    async def _answer(self, response_id: str, owner: str) -> _Kept:
        found = await self._found_anywhere(response_id, owner)
        if found is None or found.response_id != response_id or found.revision or not found.document:
            raise ResponseNotFound(kept_id=response_id, param="response_id")
        return found

    def _delete(self, response_id: str, owner: str) -> None:
        if response_id in self._kept:
            self._drop(response_id)
        self._keep(response_id, owner, (), {}, b"", is_deleted=True)

    def encoded(self, kept_id: str, owner: str) -> bytes | None:
        """Tells another gateway the answer of that id, or with an item of that id, and what was said before it.

        None: it is not here, or not for this owner.
        """
        found = self._found(kept_id, owner)
        return None if found is None else _encoded(found)

    async def _found_anywhere(self, kept_id: str, owner: str) -> _Kept | None:
        """What another gateway tells is kept here, too: the answer's other items are likely to be asked for next."""
        found = self._found(kept_id, owner)
        if found is not None or kept_id in self._kept:
            return found
        encoded = await self._ask_others(kept_id, owner)
        if encoded is None:
            return None
        self.take(encoded, owner=owner)
        return self._found(kept_id, owner)

    def _found(self, kept_id: str, owner: str) -> _Kept | None:
        response_id = self._response_of_item.get(kept_id, kept_id)
        kept = self._kept.get(response_id)
        if kept is None or kept.is_deleted or kept.owner != owner:
            return None
        self._kept.move_to_end(response_id)
        return kept


def _encoded(kept: _Kept) -> bytes:
    messages = msgspec.Raw(_MESSAGES.dump_json(list(kept.messages), exclude_none=True))
    told = _Told(
        response_id=kept.response_id,
        messages=messages,
        items=dict(kept.items),
        owner=kept.owner,
        document=msgspec.Raw(kept.document) if kept.document else _NO_DOCUMENT,
        is_deleted=kept.is_deleted,
        revision=kept.revision,
    )
    return msgspec.json.encode(told)


def _characters(message: ChatMessage) -> int:
    calls = sum(len(call.function.arguments) for call in message.tool_calls or ())
    return len(message.text) + len(message.reasoning_content or "") + calls
