"""Makes prompts of pairs of texts, and one document of the scores that units give them."""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from router.generation import Output
from router.openai.schemas import EmbeddingsUsage, PairScore, ScoreList
from router.openai.score import ScoreRequest
from router.serving.judging import SCORES, judging_prompts, reranker_of, score_of
from router.serving.pooling import PoolingPrompts, told_of_prompts
from router.telemetry.service_report import ServiceReport
from router.text.checkpoint_modules import RerankerHead
from router.text.tokenization import Tokenizers
from router.view import ModelCard

_PARAM = "text_2"


async def score_prompts(
    request: ScoreRequest, card: ModelCard, tokenizers: Tokenizers, *, max_tokens: int
) -> "PoolingPrompts[ScoreResponse]":
    """`max_tokens` is the longest sequence that the model takes. Raises as `reranker_of` and `judging_prompts`."""
    head = await reranker_of(card, tokenizers)
    prompts = await judging_prompts(
        request.pairs, head, request.instruction, card, tokenizers, max_tokens=max_tokens, param=_PARAM
    )

    def answer(outputs: AsyncGenerator[Output, None], report: ServiceReport) -> ScoreResponse:
        return ScoreResponse(outputs, request.model, head, report=report)

    return PoolingPrompts(prompts=prompts, param=_PARAM, answer=answer, scored_tokens=head.scored_tokens)


class ScoreResponse:
    """One request's scores, in the order of its pairs."""

    def __init__(
        self, outputs: AsyncGenerator[Output, None], model: str, head: RerankerHead, *, report: ServiceReport
    ) -> None:
        self.report = report
        self._outputs = outputs
        self._model = model
        self._head = head

    async def document(self) -> bytes:
        """Raises what its generations raise."""
        async with aclosing(told_of_prompts(self._outputs, model=self._model, what=SCORES)) as told:
            scores = {place: score_of(logits, self._head, self._model) async for place, logits in told}
        tokens = self.report.prompt_tokens
        reply = ScoreList(
            id=f"score-{uuid.uuid4().hex}",
            object="list",
            created=int(time.time()),
            model=self._model,
            data=[PairScore(index=place, object="score", score=scores[place]) for place in sorted(scores)],
            usage=EmbeddingsUsage(prompt_tokens=tokens, total_tokens=tokens),
        )
        return reply.model_dump_json().encode()
