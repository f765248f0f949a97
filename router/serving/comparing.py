"""Scores of pairs of texts by an embedding model: the cosine of the angle between their vectors."""

from collections.abc import AsyncGenerator, Sequence

import numpy as np
from numpy.typing import NDArray

from router.errors import GenerationFailed, InvalidRequest
from router.openai.score import ScoreRequest
from router.serving.pooling import NOT_FINITE, PromptRoom
from router.serving.prompts import Prompt, prompt_tokens
from router.text.tokenization import Tokenizers
from router.view import ModelCard


async def compared_prompts(
    request: ScoreRequest, card: ModelCard, tokenizers: Tokenizers, *, max_tokens: int
) -> list[Prompt]:
    """Makes one of each text, in the order of `texts_of`. Raises as `prompt_tokens`, and InvalidRequest: the texts have
    too many tokens together, or there is an instruction.
    """
    if request.instruction:
        message = f"{card.model!r} is an embedding model, which takes no 'instruction'; write it into the texts."
        raise InvalidRequest(message[:500], param="instruction")
    room = PromptRoom(request.param)
    prompts = []
    for text in texts_of(request.pairs):
        token_ids = await prompt_tokens(text, card, tokenizers, param=request.param, max_tokens=max_tokens)
        room.take(len(token_ids))
        prompts.append(Prompt(token_ids=tuple(token_ids)))
    return prompts


def texts_of(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Returns each text once: a query that all documents are compared with has one vector."""
    return list(dict.fromkeys(text for pair in pairs for text in pair))


async def cosines(
    told: AsyncGenerator[tuple[int, bytes], None], pairs: Sequence[tuple[str, str]], model: str
) -> list[float]:
    """Reads what a unit tells of each of `texts_of`. Raises GenerationFailed."""
    places = {text: place for place, text in enumerate(texts_of(pairs))}
    vectors = {place: _unit_vector(embedding, model) async for place, embedding in told}
    return [float(vectors[places[one]] @ vectors[places[other]]) for one, other in pairs]


def _unit_vector(embedding: bytes, model: str) -> NDArray[np.float32]:
    values = np.frombuffer(embedding, dtype="<f4").astype(np.float64)
    length = float(np.linalg.norm(values))
    if not np.isfinite(length):
        raise GenerationFailed(model=model, reason=NOT_FINITE)
    values /= max(length, np.finfo(np.float64).tiny)
    return values.astype(np.float32)
