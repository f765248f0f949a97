"""A file that comes as multipart/form-data."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from router.batches.batch_body import LONGEST_EXPIRY_S, SHORTEST_EXPIRY_S
from router.errors import BatchesUnavailable, BodyTooLarge, InvalidRequest, RequestTimeout, UnsupportedMediaType
from router.http.streaming import ClientDisconnected

_FORM_BYTES = 64 * 1024  # beside the file
_RETRY_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """`file` is in memory while it is small, else in a temporary file."""

    file: IO[bytes]
    num_bytes: int
    filename: str
    purpose: str
    expires_after_s: int | None


@asynccontextmanager
async def uploaded(request: Request, *, max_bytes: int, timeout_s: float) -> AsyncIterator[Upload]:
    """Raises BodyTooLarge, RequestTimeout, UnsupportedMediaType, InvalidRequest; BatchesUnavailable: there is no room
    for temporary files.
    """
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        raise UnsupportedMediaType(header="Content-Type", got=content_type, wanted="send multipart/form-data")
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes + _FORM_BYTES:
        raise BodyTooLarge(limit_bytes=max_bytes, remedy="split the file")
    received = 0

    async def receive() -> Message:
        nonlocal received
        message = await request.receive()
        received += len(message.get("body", b""))
        if received > max_bytes + _FORM_BYTES:
            raise BodyTooLarge(limit_bytes=max_bytes, remedy="split the file")
        return message

    try:
        async with asyncio.timeout(timeout_s):
            form = await Request(request.scope, receive).form(max_files=1, max_fields=16)
    except TimeoutError as error:
        raise RequestTimeout(limit_s=timeout_s) from error
    except ClientDisconnect as error:
        raise ClientDisconnected from error
    except OSError as error:
        reason = f"no room for temporary files in {tempfile.gettempdir()}: {error.strerror}"
        raise BatchesUnavailable(reason=reason, retry_after_s=_RETRY_S) from error
    except HTTPException as error:
        raise InvalidRequest(f"The form cannot be read: {error.detail}") from error
    try:
        yield _upload(form, max_bytes)
    finally:
        await form.close()


def _upload(form: FormData, max_bytes: int) -> Upload:
    file, purpose = form.get("file"), form.get("purpose")
    for name, value in (("file", file), ("purpose", purpose)):
        if value is None:
            message = f"Missing required parameter: {name!r}."
            raise InvalidRequest(message, param=name, code="missing_required_parameter")
    if not isinstance(file, UploadFile):
        raise InvalidRequest("'file' must be a file, not text.", param="file")
    if purpose != "batch":
        raise InvalidRequest("'purpose' must be 'batch': other files have no use here.", param="purpose")
    if (file.size or 0) > max_bytes:
        raise BodyTooLarge(limit_bytes=max_bytes, remedy="split the file")
    return Upload(
        file=file.file,
        num_bytes=file.size or 0,
        filename=file.filename or "file",
        purpose=purpose,
        expires_after_s=_expires_after_s(form),
    )


def _expires_after_s(form: FormData) -> int | None:
    anchor, seconds = (form.get(f"expires_after[{name}]") for name in ("anchor", "seconds"))
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise InvalidRequest("'expires_after[anchor]' must be 'created_at'.", param="expires_after[anchor]")
    text = seconds if isinstance(seconds, str) else ""
    if not (
        text.isascii() and text.isdigit() and len(text) <= 7 and SHORTEST_EXPIRY_S <= int(text) <= LONGEST_EXPIRY_S
    ):
        message = f"'expires_after[seconds]' must be a whole number from {SHORTEST_EXPIRY_S} to {LONGEST_EXPIRY_S}."
        raise InvalidRequest(message, param="expires_after[seconds]")
    return int(text)
