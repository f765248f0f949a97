"""Requests that ask what prompts are to a model, and for no token: a generation for each, which computes its prompt and
no more. vLLM calls them pooling.
"""

import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic

from pdmux_actor.messages import SamplingParams
from router.errors import GenerationFailed, InvalidRequest
from router.generation import Generation, Output
from router.live_view import ContextLengths
from router.openai.large_body import MAX_TOKEN_IDS
from router.serving.prompts import Prompt, completion_tokens
from router.serving.response import AnswerT
from router.telemetry.service_report import ServiceReport
from router.view import ModelCard

NOT_FINITE = "what the model computed is not finite (NaN or infinity); serve it with dtype float32 or bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingPrompts(Generic[AnswerT]):
    """`param` is what the client calls the prompts. `answer` makes an answer of their outputs and a report, which has
    the tokens of all of them. `scored_tokens` as of GenerateRequest.
    """

    prompts: Sequence[Prompt]
    param: str
    answer: Callable[[AsyncGenerator[Output, None], ServiceReport], AnswerT]
    scored_tokens: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    def generations(
        self, card: ModelCard, context: ContextLengths, report: ServiceReport, *, gives_way: bool
    ) -> list[Generation]:
        """Raises ContextLengthExceeded."""
        request_id = uuid.uuid4().hex
        return [
            Generation(
                request_id=f"{request_id}-{index}",
                choice=index,
                model=card.model,
                prompt_token_ids=prompt.token_ids,
                prompt_param=self.param,
                sampling=SamplingParams(
                    max_tokens=completion_tokens(
                        prompt_tokens=len(prompt.token_ids), asked=1, context=context, param=self.param
                    ),
                    temperature=0.0,
                ),
                stop=(),
                gives_way=gives_way,
                embeds=True,
                scored_tokens=self.scored_tokens,
                slo=report.slo,
                client_request_id=report.request_id,
                traceparent=report.traceparent,
                weights=card.weights,
            )
            for index, prompt in enumerate(self.prompts)
        ]


async def told_of_prompts(
    outputs: AsyncGenerator[Output, None], *, model: str, what: str
) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yields what units computed of each prompt, with its place, as it comes. Raises what the generations raise, and
    GenerationFailed: one ended without, for its unit is of a version that does not know `what`.
    """
    told: set[int] = set()
    async with aclosing(outputs) as ending:
        async for output in ending:
            if output.embedding:
                told.add(output.choice)
                yield output.choice, output.embedding
            elif output.finish is not None and output.choice not in told:
                raise unknown_to_unit(model, what)


def unknown_to_unit(model: str, what: str) -> GenerationFailed:
    return GenerationFailed(model=model, reason=f"the unit is of a version without {what}")


class PromptRoom:
    """Counts tokens of a request's prompts against what one request may have."""

    def __init__(self, param: str) -> None:
        self._param = param
        self._left = MAX_TOKEN_IDS

    def take(self, num_tokens: int) -> None:
        """Raises InvalidRequest: the prompts have too many tokens together."""
        self._left -= num_tokens
        if self._left < 0:
            param = self._param
            message = f"Invalid value for {param!r}: more than {MAX_TOKEN_IDS} tokens; send fewer per request."
            raise InvalidRequest(message, param=param)
