"""Responses and conversations as a gateway keeps them, and as gateways tell one another of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from pydantic import TypeAdapter

from router.openai.chat import ChatMessage
from router.responses.conversation import joined
from router.responses.input_items import InputItem

NO_DOCUMENT = msgspec.Raw(b"null")
_MESSAGES = TypeAdapter(list[ChatMessage])


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """`document` is the answer as the client got it, or a conversation. Each change of a conversation is a `revision`,
    and each news of an answer that `is_open`: a gateway works on it in the background. Other answers have none but 0.
    One that `is_deleted` stays as an empty place: no copy of it that is still on its way comes back. `heard_s` is when
    this revision came here.
    """

    response_id: str
    owner: str
    messages: tuple[ChatMessage, ...]
    items: Mapping[str, InputItem]
    document: bytes
    is_deleted: bool
    size_bytes: int
    heard_s: float
    revision: int = 0
    is_open: bool = False

    def gives_way_to(self, new: "Kept") -> bool:
        """Two gateways that tell each other of the same thing end with the same one. What is at its end stays so."""
        if self.is_deleted:
            return False
        if self.is_open != new.is_open:
            return self.is_open
        return (new.revision, new.document) > (self.revision, self.document)


class Told(msgspec.Struct):
    """Goes from one gateway to another; `messages` and `document` are JSON, which releases before did not tell."""

    response_id: str
    messages: msgspec.Raw
    items: dict[str, InputItem]
    owner: str = ""
    document: msgspec.Raw = NO_DOCUMENT
    is_deleted: bool = False
    revision: int = 0
    is_open: bool = False


def is_conversation(kept_id: str) -> bool:
    return kept_id.startswith("conv_")


def newest(copies: Sequence[bytes]) -> bytes | None:
    """Returns what several gateways told of one thing, as one; None of none."""
    told = [msgspec.json.decode(copy, type=Told) for copy in copies]
    if not told:
        return None
    last = max(told, key=lambda one: (one.is_deleted, not one.is_open, one.revision))
    if is_conversation(last.response_id) and not last.is_deleted:
        document = bytes(last.document)
        for one in told:
            document = joined(document, bytes(one.document))
        last.document = msgspec.Raw(document)
    return msgspec.json.encode(last)


def encoded(kept: Kept) -> bytes:
    messages = msgspec.Raw(_MESSAGES.dump_json(list(kept.messages), exclude_none=True))
    told = Told(
        response_id=kept.response_id,
        messages=messages,
        items=dict(kept.items),
        owner=kept.owner,
        document=msgspec.Raw(kept.document) if kept.document else NO_DOCUMENT,
        is_deleted=kept.is_deleted,
        revision=kept.revision,
        is_open=kept.is_open,
    )
    return msgspec.json.encode(told)
