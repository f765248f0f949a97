"""POST /v1/embeddings: the request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec

from router.errors import InvalidRequest
from router.openai.body import no_json
from router.openai.foreign_body import decoded
from router.openai.large_body import prompts_of

MAX_INPUTS = 2048  # as OpenAI's
MAX_NUMBERS = 1 << 22  # of all embeddings of a reply: as text, some 80 MB
_TOKEN_IDS: Mapping[str, Any] = MappingProxyType(
    {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}}
)
_INPUT = msgspec.Meta(
    extra_json_schema={
        "anyOf": [
            {"type": "string"},
            {"type": "array", "minItems": 1, "maxItems": MAX_INPUTS, "items": {"type": "string"}},
            dict(_TOKEN_IDS),
            {"type": "array", "minItems": 1, "maxItems": MAX_INPUTS, "items": dict(_TOKEN_IDS)},
        ]
    }
)


class EmbeddingsBody(msgspec.Struct, forbid_unknown_fields=True):
    """`user` is accepted and without effect."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    input: Annotated[msgspec.Raw, _INPUT]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsRequest:
    """`inputs` are texts, or token ids. `dimensions` is how many of each embedding's numbers are told; None: all.
    Inputs are cut to `most_tokens`, None: not at all, -1: to what the model takes; at their end, or at their start.
    """

    model: str
    inputs: Sequence[str | Sequence[int]]
    as_base64: bool
    dimensions: int | None
    add_special_tokens: bool
    most_tokens: int | None
    cuts_start: bool

    @classmethod
    def parse(cls, body: bytes) -> "EmbeddingsRequest":
        """Raises InvalidRequest."""
        read = decoded(body, EmbeddingsBody)
        if read.truncate_prompt_tokens == 0:
            message = "Invalid value for 'truncate_prompt_tokens': 0 leaves nothing; send -1 for what the model takes."
            raise InvalidRequest(message, param="truncate_prompt_tokens")
        try:
            given = prompts_of(bytes(memoryview(read.input)).strip(), "input", MAX_INPUTS)
        except ValueError as error:  # what is inside is decoded here only
            raise no_json(body, error) from error
        return cls(
            model=read.model,
            inputs=_inputs(given),
            as_base64=read.encoding_format == "base64",
            dimensions=read.dimensions,
            add_special_tokens=read.add_special_tokens is not False,
            most_tokens=read.truncate_prompt_tokens,
            cuts_start=read.truncation_side == "left",
        )

    def check_size(self, hidden_size: int) -> None:
        """Raises InvalidRequest: more is asked for than the model's embeddings have, or than a reply may have."""
        if self.dimensions is not None and self.dimensions > hidden_size:
            message = (
                f"Invalid value for 'dimensions': embeddings of {self.model!r} have {hidden_size} numbers, "
                f"not {self.dimensions}; ask for fewer, or leave it out."
            )
            raise InvalidRequest(message, param="dimensions")
        each = self.dimensions or hidden_size
        if each * len(self.inputs) > MAX_NUMBERS:
            message = (
                f"Invalid value for 'input': {len(self.inputs)} embeddings of {each} numbers are more than the "
                f"{MAX_NUMBERS} numbers that a reply may have; send fewer inputs, or lower 'dimensions'."
            )
            raise InvalidRequest(message, param="input")


def _inputs(given: str | list[str] | list[int] | list[list[int]]) -> Sequence[str | Sequence[int]]:
    match given:
        case str() as text:
            return [text]
        case [int(), *_] as token_ids:
            return [token_ids]  # type: ignore[list-item]  # mypy does not narrow the union by its first element
        case several:
            return several  # type: ignore[return-value]  # as above
