"""Turns a request for embeddings into generations: one for each input, which computes its prompt and no more."""

import uuid
from collections.abc import Sequence

from pdmux_actor.messages import SamplingParams
from router.errors import InvalidRequest
from router.generation import Generation
from router.live_view import ContextLengths
from router.openai.embeddings import EmbeddingsRequest
from router.openai.large_body import MAX_TOKEN_IDS
from router.serving.prompts import Prompt, completion_tokens, prompt_tokens
from router.telemetry.service_report import ServiceReport
from router.text.tokenization import Tokenizers
from router.view import ModelCard

_PARAM = "input"


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
        )
        for index, prompt in enumerate(prompts)
    ]
