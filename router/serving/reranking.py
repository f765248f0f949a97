"""Makes prompts of a query with each of its documents, and one document of the scores that units give them."""

import math
import struct
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from router.errors import GenerationFailed, InvalidRequest
from router.generation import Output
from router.openai.large_body import MAX_TOKEN_IDS
from router.openai.rerank import RerankRequest
from router.openai.schemas import EmbeddingsUsage, RankedDocument, RankedText, RerankReply
from router.serving.pooling import NOT_FINITE, PoolingPrompts, PromptRoom, told_of_prompts, unknown_to_unit
from router.serving.prompts import Prompt
from router.telemetry.service_report import ServiceReport
from router.text.checkpoint_modules import RerankerHead
from router.text.tokenization import Tokenizers
from router.view import ModelCard

_PARAM = "documents"
_WHAT = "scores of documents"


async def rerank_prompts(
    request: RerankRequest, card: ModelCard, tokenizers: Tokenizers, *, max_tokens: int
) -> "PoolingPrompts[RerankResponse]":
    """`max_tokens` is the longest sequence that the model takes. Raises as `Tokenizers.encode_chat`, and:

    InvalidRequest: the model is no reranker, or the prompts have too many tokens together.
    """
    loaded = await tokenizers.of(card)
    head = loaded.reranker
    if isinstance(head, str):
        raise InvalidRequest(f"{card.model!r} is no reranker: {head}."[:500], param="model", code="not_a_reranker")
    instruction = head.instruction if request.instruction is None else request.instruction
    before = [{"role": "system", "content": instruction}] if instruction else []
    before.append({"role": "query", "content": request.query})
    prompts: list[Prompt] = []
    room = PromptRoom(_PARAM)
    for document in request.documents:
        chat = await tokenizers.encode_chat(
            card,
            [*before, {"role": "document", "content": await _judged(request, document, card, tokenizers)}],
            {},
            max_tokens=max_tokens,
            add_generation_prompt=head.adds_generation_prompt,
            param=_PARAM,
        )
        if not chat.token_ids:
            raise InvalidRequest("The query and the document render to an empty prompt.", param=_PARAM)
        room.take(len(chat.token_ids))
        prompts.append(Prompt(token_ids=tuple(chat.token_ids)))

    def answer(outputs: AsyncGenerator[Output, None], report: ServiceReport) -> RerankResponse:
        return RerankResponse(outputs, request, head, report=report)

    return PoolingPrompts(prompts=prompts, param=_PARAM, answer=answer, scored_tokens=head.scored_tokens)


async def _judged(request: RerankRequest, document: str, card: ModelCard, tokenizers: Tokenizers) -> str:
    """Returns what is judged of a document. Raises as `Tokenizers.encode`."""
    most = request.tokens_per_document
    if most is None or len(document.encode()) <= most:  # no token is of less than a byte
        return document
    ids = await tokenizers.encode(card, document, add_special_tokens=False, max_tokens=MAX_TOKEN_IDS, param=_PARAM)
    if len(ids) <= most:
        return document
    cut = await tokenizers.decode(card, ids[:most])
    return cut.rstrip("\N{REPLACEMENT CHARACTER}")  # of a character that was cut through


class RerankResponse:
    """One request's documents, those of the highest scores first; of equal ones the earlier."""

    def __init__(
        self,
        outputs: AsyncGenerator[Output, None],
        request: RerankRequest,
        head: RerankerHead,
        *,
        report: ServiceReport,
    ) -> None:
        self.report = report
        self._outputs = outputs
        self._request = request
        self._head = head

    async def document(self) -> bytes:
        """Raises what its generations raise."""
        request = self._request
        async with aclosing(told_of_prompts(self._outputs, model=request.model, what=_WHAT)) as told:
            ranked = [self._ranked(place, logits) async for place, logits in told]
        best = sorted(ranked, key=lambda document: (-document.relevance_score, document.index))
        reply = RerankReply(
            id=f"rerank-{uuid.uuid4().hex}",
            model=request.model,
            usage=EmbeddingsUsage(prompt_tokens=self.report.prompt_tokens, total_tokens=self.report.prompt_tokens),
            results=best[: request.top_n],
        )
        return reply.model_dump_json(exclude_none=True).encode()

    def _ranked(self, place: int, told: bytes) -> RankedDocument:
        shown = self._request.documents[place] if self._request.returns_documents else None
        document = None if shown is None else RankedText(text=shown)
        return RankedDocument(index=place, relevance_score=self._score(told), document=document)

    def _score(self, told: bytes) -> float:
        size = len(self._head.scored_tokens)
        if len(told) != 4 * size:
            raise unknown_to_unit(self._request.model, _WHAT)
        logits = struct.unpack(f"<{size}f", told)
        score = logits[0] - sum(logits[1:])
        if not math.isfinite(score):  # it would rank as 0.0, or as null
            raise GenerationFailed(model=self._request.model, reason=NOT_FINITE)
        return _logistic(score) if self._head.is_probability else score


def _logistic(score: float) -> float:
    """Returns 1 / (1 + exp(-score)), of any score."""
    return 1 / (1 + math.exp(-score)) if score > -700 else 0.0
