"""Defines what all parts of a request's body have in common: nothing unknown, nothing converted."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _whole(value: object) -> object:
    """JSON Schema's integers are numbers without a fraction: 1.0 is one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_whole)]
Empty = Annotated[list[Any], Field(max_length=0)]
EmptyObject = Annotated[dict[str, Any], Field(max_length=0)]


class RequestPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
