"""Makes prompts of a request for embeddings, and one document of what units say of them."""

from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial

import msgspec
import numpy as np

from router.errors import GenerationFailed, InvalidRequest
from router.generation import Output
from router.openai.embeddings import EmbeddingsRequest
from router.openai.large_body import MAX_TOKEN_IDS
from router.serving.pooling import NOT_FINITE, PoolingPrompts, PromptRoom, told_of_prompts
from router.serving.prompts import Prompt, prompt_tokens
from router.telemetry.service_report import ServiceReport
from router.text.tokenization import Tokenizers
from router.view import ModelCard

_PARAM = "input"
_encode = msgspec.json.Encoder().encode


async def embedding_prompts(
    request: EmbeddingsRequest, card: ModelCard, tokenizers: Tokenizers, *, max_tokens: int
) -> "PoolingPrompts[EmbeddingsResponse]":
    """`max_tokens` is the longest sequence that the model takes. Raises as `completion_prompts`, and InvalidRequest:
    the inputs have too many tokens together, or the model's embeddings are others than units make.
    """
    if reason := (await tokenizers.of(card)).unserved_embeddings:
        message = f"Embeddings of {card.model!r} are not served: {reason}; name a model that pools by its last token."
        raise InvalidRequest(message[:500], param="model", code="embeddings_not_served")
    prompts: list[Prompt] = []
    room = PromptRoom(_PARAM)
    for given in request.inputs:
        token_ids = await _tokens(given, request, card, tokenizers, max_tokens)
        room.take(len(token_ids))
        prompts.append(Prompt(token_ids=tuple(token_ids)))

    def answer(outputs: AsyncGenerator[Output, None], report: ServiceReport) -> EmbeddingsResponse:
        return EmbeddingsResponse(outputs, request, report=report)

    return PoolingPrompts(prompts=prompts, param=_PARAM, answer=answer)


async def _tokens(
    given: str | Sequence[int], request: EmbeddingsRequest, card: ModelCard, tokenizers: Tokenizers, max_tokens: int
) -> Sequence[int]:
    """Raises as `prompt_tokens`."""
    cuts = request.most_tokens is not None
    read = partial(
        prompt_tokens,
        given,
        card,
        tokenizers,
        param=_PARAM,
        max_tokens=MAX_TOKEN_IDS if cuts else max_tokens,
    )
    token_ids = await read(add_special_tokens=request.add_special_tokens)
    most = request.most_tokens if request.most_tokens != -1 else max_tokens - 1  # an engine gives each one more
    if most is None or len(token_ids) <= most:
        return token_ids
    # What the tokenizer puts around a text stays: a model pools by the token that ends it.
    text = await read(add_special_tokens=False) if isinstance(given, str) and request.add_special_tokens else token_ids
    before, after = _around(list(token_ids), list(text))
    room = max(0, most - len(before) - len(after))
    kept = text[len(text) - room :] if request.cuts_start else text[:room]
    return [*before, *kept, *after][-most:]


def _around(whole: list[int], part: list[int]) -> tuple[list[int], list[int]]:
    """Returns what stands before the part, and behind it; nothing where it is not there."""
    for start in range(len(whole) - len(part) + 1):
        if whole[start : start + len(part)] == part:
            return whole[:start], whole[start + len(part) :]
    return [], []


class EmbeddingsResponse:
    """One request's embeddings as one document. Each is encoded when it comes: all at once would hold up others."""

    def __init__(
        self,
        outputs: AsyncGenerator[Output, None],
        request: EmbeddingsRequest,
        *,
        report: ServiceReport,
    ) -> None:
        self.report = report
        self._outputs = outputs
        self._request = request

    async def document(self) -> bytes:
        """Raises what its generations raise, and InvalidRequest: they have fewer dimensions than were asked for."""
        model = self._request.model
        entries = [b""] * len(self._request.inputs)
        async with aclosing(told_of_prompts(self._outputs, model=model, what="embeddings")) as told:
            async for place, embedding in told:
                entries[place] = self._entry(place, embedding)
        usage = {"prompt_tokens": self.report.prompt_tokens, "total_tokens": self.report.prompt_tokens}
        after = _encode({"model": model, "usage": usage})
        return b'{"object":"list","data":[' + b",".join(entries) + b"]," + after[1:]

    def _entry(self, index: int, embedding: bytes) -> bytes:
        values = np.frombuffer(embedding, dtype="<f4").astype(np.float64)
        self._request.check_size(len(values))
        if not np.isfinite(values).all():  # JSON has no such numbers
            raise GenerationFailed(model=self._request.model, reason=NOT_FINITE)
        values = values[: self._request.dimensions]
        values /= max(float(np.linalg.norm(values)), np.finfo(np.float64).tiny)
        told = b64encode(values.astype("<f4").tobytes()).decode() if self._request.as_base64 else values.tolist()
        return _encode({"object": "embedding", "index": index, "embedding": told})
