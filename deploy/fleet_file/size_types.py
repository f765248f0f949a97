"""Defines what sizes in a fleet file may be. Unlike `setting_types` it brings no registers."""

import re
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BeforeValidator, ByteSize, WithJsonSchema
from pydantic_core import PydanticCustomError

_SIZE = r"^\s*(\d*\.?\d+)\s*(\w+)?\s*$"


def _is_whole(value: object) -> object:
    """Unlike pydantic, which reads a beginning: of 1,5GiB the 1."""
    if isinstance(value, str) and not re.search(_SIZE, value):
        raise PydanticCustomError("byte_size", "must be a size")
    return value


Bytes = Annotated[
    ByteSize,
    BeforeValidator(_is_whole),
    WithJsonSchema({"anyOf": [{"pattern": _SIZE, "type": "string"}, {"minimum": 0, "type": "integer"}]}),
]


def _of_some_memory(size: ByteSize) -> ByteSize:
    if size == 0:
        raise PydanticCustomError("greater_than", "must be greater than 0", {"gt": 0})
    if size > _MOST_BYTES:
        raise PydanticCustomError("more_memory_than_there_is", "must be at most 8PiB")
    return size


_MOST_BYTES = 2**53
Size = Annotated[Bytes, AfterValidator(_of_some_memory)]
"""A constraint would add a keyword to the JSON schema that is none."""

_SizeT = TypeVar("_SizeT")
AutoSize = Annotated[
    _SizeT | None,
    BeforeValidator(lambda value: None if value == "auto" else value),
    WithJsonSchema(
        {
            "anyOf": [
                {"pattern": rf"^auto$|{_SIZE}", "type": "string"},
                {"minimum": 0, "type": "integer"},
                {"type": "null"},
            ]
        }
    ),
]
"""None: auto."""

KvMemory = AutoSize[Size]
"""None: the plan sizes it, or CPU_KV_BYTES."""

CPU_KV_BYTES = ByteSize(256 * 1024 * 1024)
