"""Keeps conversations that a client goes on with by the id of the last answer: in memory, the oldest are forgotten."""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType

import msgspec

from router.errors import (
    ConversationNotFound,
    GatewaysSilent,
    InvalidRequest,
    PreviousResponseNotFound,
    ResponseNotFound,
)
from router.openai.chat import ChatMessage
from router.openai.large_body import kept_messages
from router.responses.conversation import joined
from router.responses.input_items import InputItem
from router.responses.told_copies import NO_DOCUMENT, Kept, Told, encoded, is_conversation

_MESSAGE_BYTES = 512  # of one beside its text
_PAGE_BYTES = 1024 * 1024  # read in some 10 ms

AskOthers = Callable[[str, str], Awaitable[bytes | None]]
"""Asks the fleet's other gateways for what `ResponseStore.encoded` says there: id of a response or of an item, owner.
None: none keeps it. Raises GatewaysSilent.
"""


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask_others = ask_others
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._clock = clock
        self._kept: OrderedDict[str, Kept] = OrderedDict()
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
    ) -> bool:
        """`owner` alone may go on with it: an API key's id, empty without keys. `items` are the answer's, by their ids,
        as a client sends them back; `document` is all of it. Other gateways are told of it: see `fresh_copies`.
        False: it was deleted or cancelled while it was made, or there is no room for it.
        """
        known = self._kept.get(response_id)
        if known is not None and not known.is_open:
            return False
        revision = 0 if known is None else known.revision + 1
        is_kept = self._keep(response_id, owner, messages, items, document, revision=revision)
        if is_kept:
            self._fresh[response_id] = None
        return is_kept

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
        is_open: bool = False,
    ) -> bool:
        size_bytes = sum(_MESSAGE_BYTES + 4 * _characters(message) for message in messages) + len(document)
        new = Kept(
            response_id=response_id,
            owner=owner,
            messages=tuple(messages),
            items=items,
            document=document,
            is_deleted=is_deleted,
            size_bytes=size_bytes,
            heard_s=self._clock(),
            revision=revision,
            is_open=is_open,
        )
        known = self._kept.get(response_id)
        if size_bytes > self._max_bytes or (known is not None and not known.gives_way_to(new)):
            return False
        if known is not None:
            self._drop(response_id)
        self._kept[response_id] = new
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
            found.append(encoded(kept))
            room_bytes -= len(found[-1])
        return found

    def fresh_copies(self) -> tuple[tuple[Kept, ...], list[bytes]]:
        """Returns what no other gateway was told of, for `were_told`, as much as makes a page, and that page."""
        page = self.copies(self._fresh)
        return tuple(self._kept[i] for i in islice(self._fresh, len(page))), page

    def were_told(self, told: Iterable[Kept]) -> None:
        """Takes them off what is to be told, but for what was deleted or changed meanwhile."""
        for kept in told:
            if self._kept.get(kept.response_id) is kept:
                self._fresh.pop(kept.response_id, None)

    def take(self, copy: bytes, *, owner: str | None = None) -> None:
        """Keeps what another gateway's `copies` made. `owner`, where it is known: releases before told none."""
        told = msgspec.json.decode(copy, type=Told)
        owner = told.owner if owner is None else owner
        if told.is_deleted:
            self._delete(told.response_id, owner)
        elif (known := self._kept.get(told.response_id)) is None or known.is_open or told.revision:
            document = b"" if told.document == NO_DOCUMENT else bytes(told.document)
            revision = told.revision
            is_untold = told.response_id in self._fresh
            if known is not None and is_conversation(told.response_id) and not known.is_deleted:
                document = joined(known.document, document)
                if document == known.document:
                    return
                revision = max(revision, known.revision + 1)
            messages, is_open = kept_messages(told.messages), told.is_open
            self._keep(told.response_id, owner, messages, told.items, document, revision=revision, is_open=is_open)
            if is_untold and is_conversation(told.response_id):  # what came in from here is in it
                self._fresh[told.response_id] = None

    # ---- what changes: conversations, and answers that are worked on ----

    def put(self, kept_id: str, owner: str, document: bytes, *, is_open: bool = False) -> bool:
        """Keeps this instead of what it was. False: there is no room for it, it was deleted, or is an answer at its
        end.
        """
        known = self._kept.get(kept_id)
        if known is not None and not known.is_open and not is_conversation(kept_id):
            return False
        revision = 1 if known is None else known.revision + 1
        is_kept = self._keep(kept_id, owner, (), {}, document, revision=revision, is_open=is_open)
        if is_kept:
            self._fresh[kept_id] = None
        return is_kept

    def unheard_s(self, response_id: str) -> float | None:
        """Returns for how long nothing was heard of an answer that is worked on; None: it has ended, or is not here."""
        kept = self._kept.get(response_id)
        return self._clock() - kept.heard_s if kept is not None and kept.is_open else None

    def has_ended(self, response_id: str) -> bool:
        """Says whether an answer is at its end here, or deleted; what was never here, or is forgotten, is not."""
        kept = self._kept.get(response_id)
        return kept is not None and not kept.is_open

    def here(self, conversation_id: str, owner: str) -> bytes | None:
        """Returns the conversation as this gateway knows it."""
        found = self._found(conversation_id, owner) if is_conversation(conversation_id) else None
        return None if found is None else found.document

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
        """None before the first answer. Raises PreviousResponseNotFound, GatewaysSilent."""
        if response_id is None:
            return ()
        found = await self._found_anywhere(response_id, owner)
        if found is None or found.response_id != response_id or is_conversation(response_id):
            raise PreviousResponseNotFound(kept_id=response_id)
        return _said(found, "previous_response_id")

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
        return _said(await self._answer(response_id, owner), "response_id")[:-1]

    async def delete(self, response_id: str, owner: str) -> None:
        """Forgets it, and has other gateways told to: see `fresh_copies`. Raises ResponseNotFound, GatewaysSilent."""
        await self._answer(response_id, owner)
        self.forget(response_id, owner)

    async def _answer(self, response_id: str, owner: str) -> Kept:
        found = await self._found_anywhere(response_id, owner)
        if found is None or found.response_id != response_id or is_conversation(response_id) or not found.document:
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
        return None if found is None else encoded(found)

    async def _found_anywhere(self, kept_id: str, owner: str) -> Kept | None:
        """What another gateway tells is kept here, too: the answer's other items are likely to be asked for next."""
        found = self._found(kept_id, owner)
        if not found.is_open if found is not None else kept_id in self._kept:
            return found
        copy = await self._ask_others(kept_id, owner)
        if copy is not None:
            self.take(copy, owner=owner)
        return self._found(kept_id, owner)

    def _found(self, kept_id: str, owner: str) -> Kept | None:
        response_id = self._response_of_item.get(kept_id, kept_id)
        kept = self._kept.get(response_id)
        if kept is None or kept.is_deleted or kept.owner != owner:
            return None
        self._kept.move_to_end(response_id)
        return kept


def _said(kept: Kept, param: str) -> tuple[ChatMessage, ...]:
    """Raises InvalidRequest."""
    if not kept.messages:
        status = msgspec.json.decode(kept.document, type=_Status).status
        raise InvalidRequest(f"Response {kept.response_id} is {status}: it has no answer to go by.", param=param)
    return kept.messages


class _Status(msgspec.Struct):
    status: str


def _characters(message: ChatMessage) -> int:
    calls = sum(len(call.function.arguments) for call in message.tool_calls or ())
    return len(message.text) + len(message.reasoning_content or "") + calls
