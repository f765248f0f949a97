"""Bodies of /v1/conversations."""

import msgspec

from router.responses.input_items import InputItem


class ConversationBody(msgspec.Struct, forbid_unknown_fields=True):
    items: list[InputItem] | None = None
    metadata: dict[str, str] | None = None


class ConversationChange(msgspec.Struct, forbid_unknown_fields=True):
    metadata: dict[str, str] | None


class ConversationItems(msgspec.Struct, forbid_unknown_fields=True):
    items: list[InputItem]
