"""The lines of a batch's input file: checked before any of them is asked, as OpenAI does."""

from collections.abc import Iterator
from typing import IO

import msgspec

from router.batches.batch_record import LineFault
from router.batches.batch_settings import BatchSettings

MAX_FAULTS = 100
_MAX_CUSTOM_ID = 512
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _Line(msgspec.Struct, frozen=True):
    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class _Model(msgspec.Struct, frozen=True):
    model: str


class InputLine(msgspec.Struct, frozen=True):
    """`number` counts from 1."""

    number: int
    custom_id: str
    body: bytes


class CheckedInput(msgspec.Struct, frozen=True):
    """`model` where all lines ask for the same one."""

    total: int
    faults: list[LineFault]
    model: str | None


def checked(file: IO[bytes], endpoint: str, settings: BatchSettings) -> CheckedInput:
    """Reads all of it. With any fault nothing of the batch is run; the first hundred are told."""
    faults: list[LineFault] = []
    custom_ids: set[str] = set()
    models: set[str] = set()
    total = 0
    for number, text in _numbered(file, settings.max_line_bytes):
        total += 1
        if total > settings.max_lines:
            message = f"The file has more than {settings.max_lines} lines; send the rest as another batch."
            faults = [LineFault(code="too_many_tasks", message=message)]
            break
        read = _read(text, number, endpoint, settings.max_line_bytes)
        if isinstance(read, LineFault):
            faults.append(read)
        elif read.custom_id in custom_ids:
            message = f"The custom_id {read.custom_id[:64]!r} is that of another line; give each line its own."
            faults.append(LineFault(code="duplicate_custom_id", message=message, line=number, param="custom_id"))
        else:
            custom_ids.add(read.custom_id)
            models.add(msgspec.json.decode(read.body, type=_Model).model)
        if len(faults) >= MAX_FAULTS:
            break
    if not total:
        faults.append(LineFault(code="empty_file", message="The file has no lines; put one request on each."))
    return CheckedInput(total, faults, models.pop() if len(models) == 1 else None)


def lines(file: IO[bytes], settings: BatchSettings) -> Iterator[InputLine]:
    """Yields the lines of a file in which `checked` found no fault."""
    for number, text in _numbered(file, settings.max_line_bytes):
        line = msgspec.json.decode(text, type=_Line)
        yield InputLine(number, line.custom_id, bytes(line.body))


def _numbered(file: IO[bytes], max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Lines with anything on them. Of one that is too long the rest is read as lines of their own, each a fault."""
    number = 0
    while text := file.readline(max_bytes + 2):
        number += 1
        text = text.removeprefix(_BYTE_ORDER_MARK) if number == 1 else text
        if text.strip():
            yield number, text


def _read(text: bytes, number: int, endpoint: str, max_bytes: int) -> _Line | LineFault:
    if len(text.rstrip(b"\r\n")) > max_bytes:
        message = f"This line is longer than {max_bytes} bytes; send a shorter prompt."
        return LineFault(code="line_too_long", message=message, line=number)
    try:
        line = msgspec.json.decode(text, type=_Line)
    except msgspec.ValidationError as error:
        return LineFault(code="invalid_request", message=f"This line is not a request: {error}.", line=number)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return LineFault(code="invalid_json_line", message="This line is not parseable as valid JSON.", line=number)
    if not 0 < len(line.custom_id) <= _MAX_CUSTOM_ID:
        message = f"custom_id must have 1 to {_MAX_CUSTOM_ID} characters."
        return LineFault(code="invalid_custom_id", message=message, line=number, param="custom_id")
    if line.method != "POST":
        message = f"The method is {line.method[:20]!r}; only 'POST' is run."
        return LineFault(code="invalid_method", message=message, line=number, param="method")
    if line.url != endpoint:
        message = f"The url is {line.url[:100]!r}; it must be the batch's endpoint, {endpoint!r}."
        return LineFault(code="mismatched_endpoint", message=message, line=number, param="url")
    try:
        msgspec.json.decode(line.body, type=_Model)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        message = f"The body is not a request with a model: {error}."
        return LineFault(code="invalid_request", message=message, line=number, param="body")
    return line
