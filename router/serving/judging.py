"""Prompts by which a reranker judges how well a document fits a query, and its judgement."""

import math
import struct
from collections.abc import Sequence

from router.errors import GenerationFailed, InvalidRequest
from router.serving.pooling import NOT_FINITE, PromptRoom, unknown_to_unit
from router.serving.prompts import Prompt
from router.text.checkpoint_modules import RerankerHead
from router.text.tokenization import Tokenizers
from router.view import ModelCard

SCORES = "scores of documents"


async def reranker_of(card: ModelCard, tokenizers: Tokenizers) -> RerankerHead:
    """Raises as `Tokenizers.of`, and InvalidRequest: the model is no reranker."""
    head = (await tokenizers.of(card)).reranker
    if isinstance(head, str):
        raise InvalidRequest(f"{card.model!r} is no reranker: {head}."[:500], param="model", code="not_a_reranker")
    return head


async def judging_prompts(
    pairs: Sequence[tuple[str, str]],
    head: RerankerHead,
    instruction: str | None,
    card: ModelCard,
    tokenizers: Tokenizers,
    *,
    max_tokens: int,
    param: str,
) -> list[Prompt]:
    """Makes one of each query and its document. `instruction` None: the model's own. Raises as
    `Tokenizers.encode_chat`, and InvalidRequest: the prompts have too many tokens together.
    """
    instruction = head.instruction if instruction is None else instruction
    before = [{"role": "system", "content": instruction}] if instruction else []
    prompts: list[Prompt] = []
    room = PromptRoom(param)
    for query, document in pairs:
        chat = await tokenizers.encode_chat(
            card,
            [*before, {"role": "query", "content": query}, {"role": "document", "content": document}],
            {},
            max_tokens=max_tokens,
            add_generation_prompt=head.adds_generation_prompt,
            param=param,
        )
        if not chat.token_ids:
            raise InvalidRequest("The query and the document render to an empty prompt.", param=param)
        room.take(len(chat.token_ids))
        prompts.append(Prompt(token_ids=tuple(chat.token_ids)))
    return prompts


def score_of(told: bytes, head: RerankerHead, model: str) -> float:
    """Reads what a unit tells of a prompt. Raises UnsupportedParameter, GenerationFailed."""
    size = len(head.scored_tokens)
    if len(told) != 4 * size:
        raise unknown_to_unit(model, SCORES)
    logits = struct.unpack(f"<{size}f", told)
    score = logits[0] - sum(logits[1:])
    if not math.isfinite(score):  # it would rank as 0.0, or as null
        raise GenerationFailed(model=model, reason=NOT_FINITE)
    return _logistic(score) if head.is_probability else score


def _logistic(score: float) -> float:
    """Returns 1 / (1 + exp(-score)), of any score."""
    return 1 / (1 + math.exp(-score)) if score > -700 else 0.0
