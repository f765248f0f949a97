"""A conversation as gateways keep it: what two of them did to it at once becomes one again, whoever tells whom."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from router.errors import ConversationNotFound
from router.openai.chat import ChatMessage
from router.responses.chat_of_responses import messages_of
from router.responses.input_items import InputItem

_MOST_REMOVED = 4096  # remembered, so that no late copy brings them back


class Conversation(msgspec.Struct):
    """`added_ns` says when each item came, by which they are in order; those of one turn came at once. Of `metadata`
    the one that was set last holds, at `set_ns`. Items of `removed` were deleted.
    """

    id: str
    created_at: int
    metadata: dict[str, str]
    items: list[dict[str, Any]]
    added_ns: dict[str, int] = {}
    removed: list[str] = []
    set_ns: int = 0

    def shown(self) -> dict[str, Any]:
        told = {"id": self.id, "object": "conversation", "created_at": self.created_at}
        return {**told, "metadata": self.metadata}

    def messages(self) -> list[ChatMessage]:
        return messages_of(msgspec.convert(self.items, list[InputItem]))

    def item(self, item_id: str) -> dict[str, Any]:
        """Raises ConversationNotFound."""
        for item in self.items:
            if item["id"] == item_id:
                return item
        raise ConversationNotFound(kept_id=item_id, param="item_id")

    def add(self, items: Sequence[dict[str, Any]]) -> None:
        """Adds a turn after all that is there, also where another gateway's clock is ahead of this one's."""
        now_ns = max(time.time_ns(), 1 + max(self.added_ns.values(), default=0))
        self.items += items
        self.added_ns |= {item["id"]: now_ns for item in items}

    def remove(self, item_id: str) -> None:
        """Raises ConversationNotFound."""
        self.items.remove(self.item(item_id))
        self.added_ns.pop(item_id, None)
        self.removed = [*self.removed, item_id][-_MOST_REMOVED:]

    def set_metadata(self, metadata: dict[str, str]) -> None:
        self.metadata, self.set_ns = metadata, max(time.time_ns(), self.set_ns + 1)


def joined(one: bytes, other: bytes) -> bytes:
    """Returns what both say of the same conversation, as JSON; the same whichever comes first."""
    if one == other:
        return one
    left, right = (msgspec.json.decode(kept, type=Conversation) for kept in (one, other))
    newer = max(left, right, key=lambda kept: (kept.set_ns, sorted(kept.metadata.items())))
    removed = {*left.removed, *right.removed}
    items = {item["id"]: item for kept in (left, right) for item in kept.items if item["id"] not in removed}
    added_ns = {item_id: max(left.added_ns.get(item_id, 0), right.added_ns.get(item_id, 0)) for item_id in items}
    both = Conversation(
        id=left.id,
        created_at=left.created_at,
        metadata=newer.metadata,
        items=sorted(items.values(), key=lambda item: added_ns[item["id"]]),  # as they were, in one turn
        added_ns=added_ns,
        removed=sorted(removed)[-_MOST_REMOVED:],
        set_ns=newer.set_ns,
    )
    return msgspec.json.encode(both)
