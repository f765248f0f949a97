"""Defines what all parts of a request's body have in common: nothing unknown, nothing converted."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict


def _whole(value: object) -> object:
    """JSON Schema's integers are numbers without a fraction: 1.0 is one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_whole)]


class RequestPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
