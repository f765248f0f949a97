"""POST /v1/completions: the request."""

from typing import Annotated, Any

from pydantic import Field

from router.errors import InvalidRequest
from router.openai.output_form import FormText
from router.openai.parameters import MAX_LOGPROBS, MAX_N, GenerationParameters, TokenId
from router.openai.peer_parameters import RefusedCompletionParameters
from router.openai.request_part import Integer

TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]


class CompletionRequest(GenerationParameters, RefusedCompletionParameters):
    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(min_length=1, fail_fast=True)]
        | Annotated[list[TokenIds], Field(min_length=1, fail_fast=True)]
    )
    max_tokens: Annotated[Integer, Field(ge=0, le=2**31)] | None = None
    logprobs: Annotated[Integer, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    json_schema: FormText | None = None  # SGLang's
    best_of: Annotated[Integer, Field(ge=1, le=MAX_N)] | None = None

    # See UNIMPLEMENTED.
    suffix: Annotated[str, Field(max_length=0)] | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """One entry per prompt: text, or token ids."""
        match self.prompt:
            case str() as text:
                return [text]
            case [int(), *_] as token_ids:
                return [token_ids]  # type: ignore[list-item]  # mypy does not narrow the union by its first element
            case several:
                return list(several)  # type: ignore[arg-type]  # as above

    def _guided_forms(self) -> dict[str, Any]:
        return {**super()._guided_forms(), "json_schema": self.json_schema}

    @property
    def num_shown(self) -> int:
        """Counts the choices of a prompt that the reply shows: of `num_choices`, the most probable."""
        return self.n or 1

    @property
    def num_choices(self) -> int:
        return self.best_of or self.num_shown

    @property
    def asked_logprobs(self) -> int | None:
        return 0 if self.logprobs is None and self.num_choices > self.num_shown else self.logprobs

    @property
    def asked_prompt_logprobs(self) -> int | None:
        """Counts as many as the reply shows, be it as a part of the echo."""
        asked = [n for n in (self.prompt_logprobs, self.logprobs if self.echo else None) if n is not None]
        return max(asked, default=None)

    @property
    def is_prompt_only(self) -> bool:
        return self.max_tokens == 0

    def check(self) -> None:
        """Raises InvalidRequest: parameters do not fit together."""
        if self.is_prompt_only and not self.echo and self.prompt_logprobs is None:
            message = "With 'max_tokens' 0 nothing is generated: ask for 'echo', 'prompt_logprobs' or more tokens."
            raise InvalidRequest(message, param="max_tokens")
        if self.num_choices < self.num_shown:
            message = f"'best_of' is {self.best_of} and less than 'n', {self.n}: raise it, or lower 'n'."
            raise InvalidRequest(message, param="best_of")
        if self.streams and self.num_choices > self.num_shown:
            message = "The best of several completions are known when all have ended: leave 'stream' or 'best_of' out."
            raise InvalidRequest(message, param="best_of")
