"""Makes prompts of pairs of texts, and one document of the scores that units' answers give."""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from router.generation import Output
from router.openai.schemas import EmbeddingsUsage, PairScore, ScoreList
from router.openai.score import ScoreRequest
from router.serving.comparing import compared_prompts, cosines
from router.serving.judging import SCORES, judging_prompts, reranker_of, score_of
from router.serving.pooling import PoolingPrompts, told_of_prompts
from router.telemetry.service_report import ServiceReport
from router.text.checkpoint_modules import RerankerHead
from router.text.tokenization import Tokenizers
from router.view import ModelCard


async def score_prompts(
    request: ScoreRequest, card: ModelCard, tokenizers: Tokenizers, *, max_tokens: int
) -> "PoolingPrompts[ScoreResponse]":
    """`max_tokens` is the longest sequence that the model takes. Raises as `reranker_of`, `judging_prompts` and
    `compared_prompts`.
    """
    if (await tokenizers.of(card)).declares_embeddings:
        head = None
        prompts = await compared_prompts(request, card, tokenizers, max_tokens=max_tokens)
    else:
        head = await reranker_of(card, tokenizers)
        prompts = await judging_prompts(
            request.pairs, head, request.instruction, card, tokenizers, max_tokens=max_tokens, param=request.param
        )

    def answer(outputs: AsyncGenerator[Output, None], report: ServiceReport) -> ScoreResponse:
        return ScoreResponse(outputs, request, head, report=report)

    scored_tokens = () if head is None else head.scored_tokens
    return PoolingPrompts(prompts=prompts, param=request.param, answer=answer, scored_tokens=scored_tokens)


class ScoreResponse:
    """One request's scores, in the order of its pairs: a reranker's or, without `head`, an embedding model's."""

    def __init__(
        self,
        outputs: AsyncGenerator[Output, None],
        request: ScoreRequest,
        head: RerankerHead | None,
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
            if self._head is None:
                scores = await cosines(told, request.pairs, request.model)
            else:
                judged = {place: score_of(logits, self._head, request.model) async for place, logits in told}
                scores = [judged[place] for place in sorted(judged)]
        tokens = self.report.prompt_tokens
        reply = ScoreList(
            id=f"score-{uuid.uuid4().hex}",
            object="list",
            created=int(time.time()),
            model=request.model,
            data=[PairScore(index=place, object="score", score=score) for place, score in enumerate(scores)],
            usage=EmbeddingsUsage(prompt_tokens=tokens, total_tokens=tokens),
        )
        return reply.model_dump_json().encode()
