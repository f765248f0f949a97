"""Makes prompts of a query with each of its documents, and one document of the scores that units give them."""

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from router.generation import Output
from router.openai.large_body import MAX_TOKEN_IDS
from router.openai.rerank import RerankRequest
from router.openai.schemas import EmbeddingsUsage, RankedDocument, RankedText, RerankReply
from router.serving.judging import SCORES, judging_prompts, reranker_of, score_of
from router.serving.pooling import PoolingPrompts, told_of_prompts
from router.telemetry.service_report import ServiceReport
from router.text.checkpoint_modules import RerankerHead
from router.text.tokenization import Tokenizers
from router.view import ModelCard

_PARAM = "documents"


async def rerank_prompts(
    request: RerankRequest, card: ModelCard, tokenizers: Tokenizers, *, max_tokens: int
) -> "PoolingPrompts[RerankResponse]":
    """`max_tokens` is the longest sequence that the model takes. Raises as `reranker_of` and `judging_prompts`."""
    head = await reranker_of(card, tokenizers)
    pairs = [(request.query, await _judged(request, document, card, tokenizers)) for document in request.documents]
    prompts = await judging_prompts(
        pairs, head, request.instruction, card, tokenizers, max_tokens=max_tokens, param=_PARAM
    )

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
        async with aclosing(told_of_prompts(self._outputs, model=request.model, what=SCORES)) as told:
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
        return RankedDocument(
            index=place, relevance_score=score_of(told, self._head, self._request.model), document=document
        )
