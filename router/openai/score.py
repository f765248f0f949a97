"""POST /v1/score: the request, as vLLM takes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from router.errors import InvalidRequest
from router.openai.foreign_body import decoded
from router.openai.rerank import MAX_DOCUMENTS

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Texts = _Text | Annotated[list[_Text], msgspec.Meta(min_length=1, max_length=MAX_DOCUMENTS)]


class ScoreBody(msgspec.Struct, forbid_unknown_fields=True):
    """`user` is accepted and without effect."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    text_1: _Texts
    text_2: _Texts
    instruction: str | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Each pair is a query and a document. `instruction` None: the model's own."""

    model: str
    pairs: Sequence[tuple[str, str]]
    instruction: str | None

    @classmethod
    def parse(cls, body: bytes) -> "ScoreRequest":
        """Raises InvalidRequest."""
        read = decoded(body, ScoreBody)
        queries, documents = _listed(read.text_1), _listed(read.text_2)
        if len(queries) == 1:
            queries *= len(documents)
        if len(queries) != len(documents):
            message = (
                f"Invalid value for 'text_1': {len(queries)} texts do not pair with {len(documents)} of 'text_2'; send "
                "one text, or as many as there."
            )
            raise InvalidRequest(message, param="text_1")
        return cls(model=read.model, pairs=list(zip(queries, documents, strict=True)), instruction=read.instruction)


def _listed(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts
