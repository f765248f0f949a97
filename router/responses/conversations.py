"""Conversations of the Responses API: items that clients and answers add, kept beside the answers, as one document."""

import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from router.errors import InvalidRequest
from router.openai.chat import MAX_MESSAGES
from router.responses.conversation import Conversation
from router.responses.input_items import REFERENCE, InputItem
from router.responses.listed_items import with_new_ids
from router.responses.response_store import ResponseStore


class Conversations:
    """Reads and changes those of one `owner`, an API key's id. A change asks the other gateways first, and they
    are told of it after.
    """

    def __init__(self, store: ResponseStore, owner: str) -> None:
        self._store = store
        self._owner = owner

    async def read(self, conversation_id: str, param: str = "conversation_id") -> Conversation:
        """Raises ConversationNotFound, GatewaysSilent."""
        kept = await self._store.conversation(conversation_id, self._owner, param)
        return msgspec.json.decode(kept, type=Conversation)

    async def create(self, items: Sequence[InputItem], metadata: dict[str, str]) -> Conversation:
        """Raises InvalidRequest, ResponseNotFound, GatewaysSilent."""
        added = with_new_ids(await meant_items(items, self._store, self._owner))
        new = Conversation(id=f"conv_{uuid.uuid4().hex}", created_at=int(time.time()), metadata=metadata, items=[])
        new.add(added)
        self.keep(new)
        return new

    async def add(self, conversation_id: str, items: Sequence[InputItem]) -> list[dict[str, Any]]:
        """Returns the items as they are kept. Raises InvalidRequest, and what `read` and `meant_items` raise."""
        added = with_new_ids(await meant_items(items, self._store, self._owner))
        conversation = await self.read(conversation_id)
        conversation.add(added)
        self.keep(conversation)
        return added

    def keep(self, conversation: Conversation) -> None:
        """Keeps what was read and changed since, without a turn of the loop between the two. Raises InvalidRequest."""
        if len(conversation.items) > MAX_MESSAGES:
            raise InvalidRequest(f"A conversation has at most {MAX_MESSAGES} items.", param="items")
        if not self._store.put(conversation.id, self._owner, msgspec.json.encode(conversation)):
            raise InvalidRequest("The conversation was deleted, or is larger than gateways keep.", param="items")

    def append(self, conversation_id: str, items: Sequence[dict[str, Any]]) -> None:
        """Adds a turn to what the conversation is by now; one that was deleted meanwhile stays so."""
        kept = self._store.here(conversation_id, self._owner)
        if kept is not None:
            conversation = msgspec.json.decode(kept, type=Conversation)
            conversation.add(items)
            self._store.put(conversation_id, self._owner, msgspec.json.encode(conversation))

    async def delete(self, conversation_id: str) -> None:
        """Raises ConversationNotFound, GatewaysSilent."""
        await self.read(conversation_id)
        self._store.forget(conversation_id, self._owner)


async def meant_items(items: Sequence[InputItem], store: ResponseStore, owner: str) -> Sequence[InputItem]:
    """Returns items with those of answers in the place of references. Raises ResponseNotFound, GatewaysSilent."""
    referred = dict.fromkeys(item.id or "" for item in items if item.type == REFERENCE)
    if not referred:
        return items
    meant = await store.items(referred, owner)
    return [meant[item.id or ""] if item.type == REFERENCE else item for item in items]
