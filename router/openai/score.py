"""POST /v1/score: the request, as vLLM takes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from router.errors import InvalidRequest
from router.openai.foreign_body import decoded
from router.openai.rerank import MAX_DOCUMENTS

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Texts = _Text | Annotated[list[_Text], msgspec.Meta(min_length=1, max_length=MAX_DOCUMENTS)] | None


class ScoreBody(msgspec.Struct, forbid_unknown_fields=True):
    """Both sides of the pairs have several names, of which one is sent. `user` is accepted and without effect."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    text_1: _Texts = None
    text_2: _Texts = None
    queries: _Texts = None
    documents: _Texts = None
    items: _Texts = None
    data_1: _Texts = None
    data_2: _Texts = None
    instruction: str | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Each pair is a query and a document; `param` is what the client calls the documents. `instruction` None: the
    model's own.
    """

    model: str
    pairs: Sequence[tuple[str, str]]
    param: str
    instruction: str | None

    @classmethod
    def parse(cls, body: bytes) -> "ScoreRequest":
        """Raises InvalidRequest."""
        read = decoded(body, ScoreBody)
        first, queries = _sent(text_1=read.text_1, queries=read.queries, data_1=read.data_1)
        second, documents = _sent(text_2=read.text_2, documents=read.documents, items=read.items, data_2=read.data_2)
        if len(queries) == 1:
            queries *= len(documents)
        if len(queries) != len(documents):
            message = (
                f"Invalid value for {first!r}: {len(queries)} texts do not pair with {len(documents)} of {second!r}; "
                "send one text, or as many as there."
            )
            raise InvalidRequest(message, param=first)
        pairs = list(zip(queries, documents, strict=True))
        return cls(model=read.model, pairs=pairs, param=second, instruction=read.instruction)


def _sent(**named: str | list[str] | None) -> tuple[str, list[str]]:
    """Returns the name that was sent, with its texts. Raises InvalidRequest: none was, or two."""
    sent = [(name, [texts] if isinstance(texts, str) else texts) for name, texts in named.items() if texts is not None]
    if not sent:
        first = next(iter(named))
        message = f"Missing required parameter: {first!r}."
        raise InvalidRequest(message, param=first, code="missing_required_parameter")
    if len(sent) > 1:
        (one, _), (other, _), *_ = sent
        raise InvalidRequest(f"{one!r} and {other!r} are names of the same: send one of them.", param=other)
    return sent[0]
