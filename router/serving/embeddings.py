"""Turns a request for embeddings into generations, one for each input, which computes its prompt and no more; and their
outputs into one document.
"""

import uuid
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
import numpy as np

from pdmux_actor.messages import SamplingParams
from router.errors import GenerationFailed, InvalidRequest
from router.generation import Generation, Output
from router.live_view import ContextLengths
from router.openai.embeddings import EmbeddingsRequest
from router.openai.large_body import MAX_TOKEN_IDS
from router.serving.prompts import Prompt, completion_tokens, prompt_tokens
from router.telemetry.service_report import ServiceReport
from router.text.tokenization import Tokenizers
from router.view import ModelCard

_PARAM = "input"
_encode = msgspec.json.Encoder().encode


async def embedding_prompts(
    request: EmbeddingsRequest, card: ModelCard, tokenizers: Tokenizers, *, max_tokens: int
) -> list[Prompt]:
    """`max_tokens` is the longest sequence that the model takes. Raises as `completion_prompts`, and InvalidRequest:
    the inputs have too many tokens together.
    """
    prompts: list[Prompt] = []
    room = MAX_TOKEN_IDS
    for given in request.inputs:
        token_ids = await prompt_tokens(
            given,
            card,
            tokenizers,
            param=_PARAM,
            max_tokens=max_tokens,
            add_special_tokens=request.add_special_tokens,
        )
        room -= len(token_ids)
        if room < 0:
            message = f"Invalid value for {_PARAM!r}: more than {MAX_TOKEN_IDS} tokens; send fewer inputs per request."
            raise InvalidRequest(message, param=_PARAM)
        prompts.append(Prompt(token_ids=tuple(token_ids)))
    return prompts


def embedding_generations(
    card: ModelCard, prompts: Sequence[Prompt], context: ContextLengths, report: ServiceReport, *, gives_way: bool
) -> list[Generation]:
    """Raises ContextLengthExceeded."""
    request_id = uuid.uuid4().hex
    return [
        Generation(
            request_id=f"{request_id}-{index}",
            choice=index,
            model=card.model,
            prompt_token_ids=prompt.token_ids,
            prompt_param=_PARAM,
            sampling=SamplingParams(
                max_tokens=completion_tokens(
                    prompt_tokens=len(prompt.token_ids), asked=1, context=context, param=_PARAM
                ),
                temperature=0.0,
            ),
            stop=(),
            gives_way=gives_way,
            embeds=True,
            slo=report.slo,
            client_request_id=report.request_id,
            traceparent=report.traceparent,
            weights=card.weights,
        )
        for index, prompt in enumerate(prompts)
    ]


class EmbeddingsResponse:
    """One request's embeddings as one document. Each is encoded when it comes: all at once would hold up others."""

    def __init__(
        self,
        outputs: AsyncGenerator[Output, None],
        request: EmbeddingsRequest,
        *,
        prompt_tokens: int,
        report: ServiceReport,
    ) -> None:
        self.report = report
        self._outputs = outputs
        self._request = request
        self._prompt_tokens = prompt_tokens

    async def document(self) -> bytes:
        """Raises what its generations raise, and InvalidRequest: they have fewer dimensions than were asked for."""
        model = self._request.model
        entries = [b""] * len(self._request.inputs)
        async with aclosing(self._outputs) as outputs:
            async for output in outputs:
                if output.embedding:
                    entries[output.choice] = self._entry(output.choice, output.embedding)
                elif output.finish is not None and not entries[output.choice]:
                    raise GenerationFailed(model=model, reason="the unit is of a version without embeddings")
        usage = {"prompt_tokens": self._prompt_tokens, "total_tokens": self._prompt_tokens}
        after = _encode({"model": model, "usage": usage})
        return b'{"object":"list","data":[' + b",".join(entries) + b"]," + after[1:]

    def _entry(self, index: int, embedding: bytes) -> bytes:
        values = np.frombuffer(embedding, dtype="<f4").astype(np.float64)
        self._request.check_size(len(values))
        values = values[: self._request.dimensions]
        values /= max(float(np.linalg.norm(values)), np.finfo(np.float64).tiny)
        told = b64encode(values.astype("<f4").tobytes()).decode() if self._request.as_base64 else values.tolist()
        return _encode({"object": "embedding", "index": index, "embedding": told})
