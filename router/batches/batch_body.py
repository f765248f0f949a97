"""POST /v1/batches: the body."""

import re
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from router.batches.batch_record import BatchRequest, batch_id_at
from router.errors import InvalidRequest

_WINDOW = re.compile(r"^([1-9][0-9]{0,2})h$")
_MOST_HOURS = 168
_MOST_METADATA = 16
_LONGEST_KEY, _LONGEST_VALUE = 64, 512
SHORTEST_EXPIRY_S, LONGEST_EXPIRY_S = 3600, 2_592_000  # OpenAI's: an hour, thirty days


class ExpiresAfter(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    anchor: Literal["created_at"]
    seconds: Annotated[int, msgspec.Meta(ge=SHORTEST_EXPIRY_S, le=LONGEST_EXPIRY_S)]


class BatchBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`completion_window` is "24h", or another number of hours."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


def new_batch(body: BatchBody, endpoints: Sequence[str], *, owner: str, tenant: str, now_s: float) -> BatchRequest:
    """Raises InvalidRequest."""
    if body.endpoint not in endpoints:
        message = f"No batches of {body.endpoint[:100]!r}; 'endpoint' is one of {', '.join(endpoints)}."
        raise InvalidRequest(message, param="endpoint")
    window = _WINDOW.match(body.completion_window)
    if window is None or int(window[1]) > _MOST_HOURS:
        message = f"Invalid 'completion_window': send \"24h\", or another number of hours up to {_MOST_HOURS}."
        raise InvalidRequest(message, param="completion_window")
    metadata = body.metadata or {}
    if len(metadata) > _MOST_METADATA or any(
        len(key) > _LONGEST_KEY or len(value) > _LONGEST_VALUE for key, value in metadata.items()
    ):
        message = f"'metadata' has at most {_MOST_METADATA} pairs, of {_LONGEST_KEY} and {_LONGEST_VALUE} characters."
        raise InvalidRequest(message, param="metadata")
    return BatchRequest(
        id=batch_id_at(now_s),
        owner=owner,
        tenant=tenant,
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        completion_window=body.completion_window,
        created_at=int(now_s),
        expires_at=int(now_s) + 3600 * int(window[1]),
        metadata=body.metadata,
        output_keep_s=None if body.output_expires_after is None else body.output_expires_after.seconds,
    )
