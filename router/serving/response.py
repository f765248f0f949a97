"""Runs the generations of one request side by side and makes events or one document of their outputs."""

import asyncio
import secrets
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Generic, Protocol, Self, TypeVar

from pdmux_actor.messages import SamplingParams
from router.errors import GatewayFault, RouterError, WeightsChanged
from router.generation import Generation, Output
from router.live_view import ContextLengths
from router.openai.parameters import GenerationParameters
from router.openai.reply import Choice, ReplyFormat, Usage
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
                    choice=choice,
                    model=card.model,
                    prompt_token_ids=prompt.token_ids,
                    prompt_param=param,
                    sampling=sampling(max_tokens=max_tokens, choice=choice, fallback_seed=fallback_seed),
                    stop=request.stop_strings,
                    reply=prompt.reply,
                    thinking=prompt.thinking,
                    skip_special_tokens=prompt.skip_special_tokens,
                    shows_stop=request.shows_stop,
                    cache_salt=request.prefix_salt,
                    gives_way=gives_way,
                    prompt_only=request.is_prompt_only,
                    fills_context=request.asked_max_tokens is None,
                    shares_prompt=nth > 0,
                    slo=report.slo,
                    client_request_id=report.request_id,
                    traceparent=report.traceparent,
                    weights=card.weights,
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


def interleave(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Items as they come. The first error ends all; so does closing."""
    return streams[0] if len(streams) == 1 else _interleaved(streams)


async def _interleaved(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    arrived: asyncio.Queue[T | Exception | None] = asyncio.Queue(maxsize=2 * len(streams))

    async def pump(stream: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(stream) as items:
                async for item in items:
                    await arrived.put(item)
        except Exception as error:  # whatever it is, the reader raises it
            await arrived.put(error)
        else:
            await arrived.put(None)

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
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


class GenerationResponse:
    def __init__(
        self,
        outputs: AsyncGenerator[Output, None],
        format_: ReplyFormat,
        *,
        num_choices: int,
        choices_per_prompt: int,
        prompt_tokens: int,
        include_usage: bool,
        continuous_usage: bool,
        report: ServiceReport,
    ) -> None:
        self.report = report
        self._outputs = outputs
        self._format = format_
        self._num_choices, self._choices_per_prompt = num_choices, choices_per_prompt
        self._prompt_tokens = prompt_tokens
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        self._completion_tokens = 0
        self._reasoning_tokens = 0
        self._cached_tokens = 0

    async def document(self) -> bytes:
        choices = [Choice() for _ in range(self._num_choices)]
        async with aclosing(self._outputs) as outputs:
            async for output in outputs:
                self._count(output)
                choices[output.choice].add(output)
        return self._format.document(choices, self._usage())

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yields no event that tells of a WeightsChanged before the first one: the answer is prepared anew."""
        told = False
        try:
            async with aclosing(self._outputs) as outputs:
                async for output in outputs:
                    self._count(output)
                    usage = self._usage() if self._continuous_usage else None
                    if events := self._format.events(output.choice, output, usage):
                        told = True
                        yield events
        except Exception as error:
            if isinstance(error, WeightsChanged) and not (told or error.has_begun):
                raise
            failure = error if isinstance(error, RouterError) else GatewayFault(request_id=self.report.request_id)
            if events := self._format.failed_event(failure):
                yield events
            raise
        if self._include_usage:
            yield self._format.usage_event(self._usage())

    def _count(self, output: Output) -> None:
        self._completion_tokens += output.num_tokens
        self._reasoning_tokens += output.reasoning_tokens
        if output.choice % self._choices_per_prompt == 0:  # the others of a prompt find what this one has left
            self._cached_tokens += output.cached_tokens

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            cached_tokens=min(self._cached_tokens, self._prompt_tokens),
            reasoning_tokens=self._reasoning_tokens,
        )


class _Answer(Protocol):
    @property
    def report(self) -> ServiceReport: ...

    async def document(self) -> bytes: ...


AnswerT = TypeVar("AnswerT", bound=_Answer)


class RenewedDocument(Generic[AnswerT]):
    """Prepares an answer anew whose model was given other weights before anything of it was told: its prompt was made
    by the tokenizer and the chat template of weights that no unit has any more.
    """

    def __init__(self, answer: AnswerT, prepare: Callable[[], Awaitable[AnswerT]]) -> None:
        self._answer = answer
        self._prepare = prepare

    @classmethod
    async def of(cls, prepare: Callable[[], Awaitable[AnswerT]]) -> Self:
        """`prepare` is called again with each change. Raises what it raises."""
        return cls(await prepare(), prepare)

    @property
    def report(self) -> ServiceReport:
        return self._answer.report

    async def document(self) -> bytes:
        while True:
            try:
                return await self._answer.document()
            except WeightsChanged as changed:
                if changed.has_begun:
                    raise
            self._answer = await self._prepare()


class RenewedResponse(RenewedDocument[GenerationResponse]):
    """Goes on with a GenerationResponse by other weights."""

    async def events(self) -> AsyncGenerator[bytes, None]:
        told = False
        while True:
            try:
                async with aclosing(self._answer.events()) as events:
                    async for event in events:
                        told = True
                        yield event
            except WeightsChanged as changed:
                if told or changed.has_begun:
                    raise
            else:
                return
            self._answer = await self._prepare()
