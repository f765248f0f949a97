"""POST /v1/rerank: the request, as Jina and Cohere write it and vLLM takes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from router.errors import InvalidRequest
from router.openai.foreign_body import decoded

MAX_DOCUMENTS = 2048  # as inputs of embeddings


class RerankDocument(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class RerankBody(msgspec.Struct, forbid_unknown_fields=True):
    """`user` is accepted and without effect. `top_n` 0 is as if it were left out."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    query: Annotated[str, msgspec.Meta(min_length=1)]
    documents: Annotated[list[str | RerankDocument], msgspec.Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    top_n: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    instruction: str | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankRequest:
    """The best `top_n` of `documents` are told, whole; judged are their first `tokens_per_document`, None: all.
    `instruction` None: the model's own.
    """

    model: str
    query: str
    documents: Sequence[str]
    top_n: int
    returns_documents: bool
    tokens_per_document: int | None
    instruction: str | None

    @classmethod
    def parse(cls, body: bytes) -> "RerankRequest":
        """Raises InvalidRequest."""
        read = decoded(body, RerankBody)
        documents = [one if isinstance(one, str) else one.text for one in read.documents]
        for place, document in enumerate(documents):
            if not document:
                message = f"Invalid value for 'documents[{place}]': it has no text; leave it out."
                raise InvalidRequest(message, param=f"documents[{place}]")
        return cls(
            model=read.model,
            query=read.query,
            documents=documents,
            top_n=read.top_n or len(documents),
            returns_documents=read.return_documents is not False,
            tokens_per_document=read.max_tokens_per_doc,
            instruction=read.instruction,
        )
