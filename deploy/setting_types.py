"""What single values of a fleet file may be."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ByteSize, StringConstraints
from pydantic_core import PydanticCustomError

ModelId = Annotated[
    str, StringConstraints(max_length=128, pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9._:-]|/[A-Za-z0-9._:-])*$")
]
"""Chosen so that an id is usable as it stands in a URL path, a metric label and a file name."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?$")]
LabelKey = Annotated[
    str, StringConstraints(max_length=317, pattern=r"^(?:[a-z0-9.-]+/)?[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?$")
]
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=r"^[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?$")]
Backend = Literal["native", "sglang"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
PolicyName = Literal[
    "mux", "muxwise", "duetserve", "adbs", "chunked_prefill", "prefill_first", "temporal", "static_split"
]

Replan = Literal["auto", "shadow", "off", "scratch"]
WrittenReplan = Annotated[Replan, BeforeValidator(lambda value: "off" if value is False else value)]
"""YAML makes false of a bare off."""


def _more_than_nothing(size: ByteSize) -> ByteSize:
    if size == 0:
        raise PydanticCustomError("greater_than", "must be greater than 0", {"gt": 0})
    return size


Size = Annotated[ByteSize, AfterValidator(_more_than_nothing)]
"""A constraint would add a keyword to the JSON schema that is none."""
