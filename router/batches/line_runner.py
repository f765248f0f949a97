"""Asks one line of a batch, until it has an answer or an error that asking again would not change."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from router.batches.batch_record import BatchRequest
from router.batches.input_lines import InputLine
from router.batches.kept_batches import LineResult
from router.error_bodies import INTERNAL, error_body, internal_error_body, shape_of
from router.errors import ModelLoadFailed, RouterError
from router.request_terms import Caller, Priority

logger = logging.getLogger(__name__)

AskLine = Callable[[bytes, Caller, str], Awaitable[bytes]]
"""Answers a body as its endpoint does; the last is the owner's key. Raises RouterError."""

_PATIENCE_S = 3600.0  # in the gateway's queue, before the line is put into it again
_MOST_PAUSE_S = 30.0
_encode = msgspec.json.encode


async def result_of(
    line: InputLine, request: BatchRequest, ask: AskLine, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> LineResult:
    """Asks at low priority, and outside the rates of the key."""
    request_id = f"batch_req_{uuid.uuid4().hex}"
    caller = Caller(
        tenant=f"{request.tenant} (batch)",
        priority=Priority.LOW,
        max_priority=Priority.LOW,
        names_priority=True,
        ttft_s=_PATIENCE_S,
        request_id=request_id,
    )
    pause_s = 1.0
    while True:
        try:
            body = await ask(line.body, caller, request.owner)
        except RouterError as error:
            shape = shape_of(error)
            # A model that does not load may be mended before the batch's time is over.
            if not (shape.should_retry or isinstance(error, ModelLoadFailed)):
                return _answered(line, request_id, shape.status, error_body(error, request.endpoint))
            await sleep(min(_MOST_PAUSE_S, max(pause_s, error.retry_after_s or 0)))
            pause_s *= 2
        except Exception:
            logger.exception("a line of a batch failed by our own error", extra={"request_id": request_id})
            return _answered(line, request_id, INTERNAL.status, internal_error_body(request_id))
        else:
            return _answered(line, request_id, 200, msgspec.Raw(body))


def not_asked(line: InputLine, code: str, message: str) -> LineResult:
    """Makes the result of a line that the batch's end left behind."""
    said = {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": line.custom_id,
        "response": None,
        "error": {"code": code, "message": message},
    }
    return LineResult(line.number, False, msgspec.Raw(_encode(said)))


def _answered(line: InputLine, request_id: str, status: int, body: msgspec.Raw | Mapping[str, Any]) -> LineResult:
    said = {
        "id": request_id,
        "custom_id": line.custom_id,
        "response": {"status_code": status, "request_id": request_id, "body": body},
        "error": None,
    }
    return LineResult(line.number, status == 200, msgspec.Raw(_encode(said)))
