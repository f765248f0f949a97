"""POST /v1/completions: the request."""

from typing import Annotated

from pydantic import Field

from router.openai.parameters import MAX_LOGPROBS, GenerationParameters, TokenId
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

    # See UNIMPLEMENTED.
    best_of: Annotated[Integer, Field(ge=1, le=1)] | None = None
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

    @property
    def asked_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def asked_prompt_logprobs(self) -> int | None:
        """Counts as many as the reply shows, be it as a part of the echo."""
        asked = [n for n in (self.prompt_logprobs, self.logprobs if self.echo else None) if n is not None]
        return max(asked, default=None)

    @property
    def is_prompt_only(self) -> bool:
        return self.max_tokens == 0
