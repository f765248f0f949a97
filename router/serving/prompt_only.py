"""Requests that ask for nothing but their prompt: `max_tokens` 0."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from pdmux_actor.messages import FinishReason
from router.generation import Output


async def without_completion(outputs: AsyncGenerator[Output, None]) -> AsyncGenerator[Output, None]:
    """Leaves out the one token that an engine generates to every prompt."""
    async with aclosing(outputs) as coming:
        async for output in coming:
            finish = None if output.finish is None else FinishReason.LENGTH
            yield replace(output, text="", num_tokens=0, logprobs=(), token_ids=(), finish=finish)
