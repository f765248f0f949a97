"""Lists in pages, as OpenAI's API has them."""

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response

from router.errors import InvalidRequest


def page_of(ids: Sequence[str], asked: QueryParams, *, most: int, default: int) -> tuple[Sequence[str], bool]:
    """Cuts from ids, the newest first. Raises InvalidRequest."""
    limit = asked.get("limit", str(default))
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 5 and 1 <= int(limit) <= most):
        raise InvalidRequest(f"'limit' must be a whole number from 1 to {most}.", param="limit")
    if asked.get("order", "desc") not in ("asc", "desc"):
        raise InvalidRequest("'order' must be 'asc' or 'desc'.", param="order")
    ordered = ids if asked.get("order", "desc") == "desc" else ids[::-1]
    after = asked.get("after")
    if after is not None:
        if after not in ordered:
            raise InvalidRequest(f"'after' is {after[:100]!r}, which is not in the list.", param="after")
        ordered = ordered[ordered.index(after) + 1 :]
    return ordered[: int(limit)], len(ordered) > int(limit)


def listed(data: list[dict[str, Any]], *, has_more: bool) -> Response:
    ids = [item["id"] for item in data]
    ends = {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
    return json_of({"object": "list", "data": data, **ends, "has_more": has_more})


def json_of(document: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(document), media_type="application/json")


def page_of_items(items: Sequence[dict[str, Any]], asked: QueryParams) -> Response:
    """Lists items of a response or a conversation, the oldest of which comes first here. Raises InvalidRequest."""
    by_id = {item["id"]: item for item in items}
    page, has_more = page_of(list(by_id)[::-1], asked, most=100, default=20)
    return listed([by_id[item_id] for item_id in page], has_more=has_more)
