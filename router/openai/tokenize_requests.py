"""POST /tokenize and /detokenize: requests and replies, in vLLM's shapes."""

from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, Field

from router.errors import InvalidRequest
from router.openai.chat import MAX_MESSAGES, ChatMessage, check_can_go_on, two_ends
from router.openai.request_part import RequestPart
from router.openai.tools import Tools


class TokenizeRequest(RequestPart):
    """`add_special_tokens` is true for a prompt and false for messages, whose template writes its own."""

    model: str = Field(min_length=1)
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None

    def check(self) -> None:
        """Raises InvalidRequest: it has neither a prompt nor messages, or both, or a prompt that is no text; or a last
        message is to be continued that cannot be.
        """
        if (self.prompt is None) is (self.messages is None):
            raise InvalidRequest("Send either 'prompt' or 'messages'.", param="prompt")
        if not isinstance(self.prompt, str | None):  # a large body's, whose kinds are those of completions
            raise InvalidRequest("'prompt' must be a string here.", param="prompt", code="invalid_type")
        if self.continue_final_message and self.messages is not None:
            if self.add_generation_prompt:
                raise two_ends()
            check_can_go_on(self.messages[-1])


class DetokenizeBody(msgspec.Struct, forbid_unknown_fields=True):
    """Read into fixed types, in a time that its bytes bound."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    tokens: list[Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]]


class Tokenized(BaseModel):
    """`max_model_len` is null until a unit was ready; `token_strs` unless they are asked for."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(BaseModel):
    prompt: str
