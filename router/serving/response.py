"""One request's outputs, as events or as one document."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from router.generation import Output
from router.openai.reply import Choice, ReplyFormat, Usage
from router.telemetry.service_report import ServiceReport

IndexedOutputs = AsyncGenerator[tuple[int, Output], None]


class GenerationResponse:
    def __init__(
        self,
        outputs: IndexedOutputs,
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
            async for index, output in outputs:
                self._count(index, output)
                choices[index].add(output)
        return self._format.document(choices, self._usage())

    async def events(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._outputs) as outputs:
            async for index, output in outputs:
                self._count(index, output)
                events = self._format.events(index, output, self._usage() if self._continuous_usage else None)
                if events:
                    yield events
        if self._include_usage:
            yield self._format.usage_event(self._usage())

    def _count(self, index: int, output: Output) -> None:
        self._completion_tokens += output.num_tokens
        self._reasoning_tokens += output.reasoning_tokens
        if index % self._choices_per_prompt == 0:  # the others of a prompt find what this one has left
            self._cached_tokens += output.cached_tokens

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            cached_tokens=min(self._cached_tokens, self._prompt_tokens),
            reasoning_tokens=self._reasoning_tokens,
        )
