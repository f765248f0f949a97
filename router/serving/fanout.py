"""Makes the generations of one request, and one stream of several."""

import asyncio
import secrets
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import TypeVar

from pdmux_actor.messages import SamplingParams
from router.generation import Generation
from router.live_view import ContextLengths
from router.openai.parameters import GenerationParameters
from router.serving.prompts import Prompt, completion_tokens
from router.telemetry.service_report import ServiceReport
from router.view import ModelCard

T = TypeVar("T")


def generations_of(
    card: ModelCard,
    request: GenerationParameters,
    prompts: Sequence[Prompt],
    param: str,
    context: ContextLengths,
    report: ServiceReport,
    sampling: Callable[..., SamplingParams],
    *,
    gives_way: bool,
) -> list[Generation]:
    """One for each prompt and choice, in that order. Raises ContextLengthExceeded."""
    generations: list[Generation] = []
    fallback_seed = secrets.randbits(63)
    request_id = uuid.uuid4().hex
    for prompt in prompts:
        max_tokens = completion_tokens(
            prompt_tokens=len(prompt.token_ids),
            asked=request.asked_max_tokens,
            context=context,
            param=param,
        )
        for nth in range(request.num_choices):
            choice = len(generations)
            generations.append(
                Generation(
                    request_id=f"{request_id}-{choice}",
                    model=card.model,
                    prompt_token_ids=prompt.token_ids,
                    prompt_param=param,
                    sampling=sampling(max_tokens=max_tokens, choice=choice, fallback_seed=fallback_seed),
                    stop=request.stop_strings,
                    reply=prompt.reply,
                    skip_special_tokens=prompt.skip_special_tokens,
                    cache_salt=request.prefix_salt,
                    gives_way=gives_way,
                    prompt_only=request.is_prompt_only,
                    fills_context=request.asked_max_tokens is None,
                    shares_prompt=nth > 0,
                    slo=report.slo,
                    client_request_id=report.request_id,
                    traceparent=report.traceparent,
                )
            )
    return generations


def so_many_at_once(streams: Iterable[AsyncGenerator[T, None]], most: int) -> list[AsyncGenerator[T, None]]:
    """Streams that begin when fewer than `most` of them are under way."""
    room = asyncio.Semaphore(most)

    async def in_turn(stream: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        # no deadline: each generation before it has its own
        async with room, aclosing(stream) as items:
            async for item in items:
                yield item

    return [in_turn(stream) for stream in streams]


async def interleave(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Items with the index of their stream, as they come. The first error ends all; so does closing."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    arrived: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(maxsize=2 * len(streams))

    async def pump(index: int, stream: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(stream) as items:
                async for item in items:
                    await arrived.put((index, item))
        except Exception as error:  # whatever it is, the reader raises it
            await arrived.put(error)
        else:
            await arrived.put(None)

    tasks = [asyncio.create_task(pump(index, stream)) for index, stream in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            # no deadline: each generation has its own
            arrival = await arrived.get()
            if isinstance(arrival, Exception):
                raise arrival
            if arrival is None:
                running -= 1
            else:
                yield arrival
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
