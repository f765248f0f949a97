"""One choice of one request, on its way through the gateway."""

from dataclasses import dataclass
from typing import Any

import msgspec

from pdmux_actor.messages import FinishReason, SamplingParams, Slo
from pdmux_actor.serving.frames import PromptToken, TokenLogprob
from router.request_terms import AdmissionRequest, Caller
from router.routing.prefix_index import prefix_names


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyShape:
    """Says how to read a reply: `template` names its parts, `prompt_end` may have opened one of them."""

    template: dict[str, Any]
    prompt_end: str
    tools: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingBudget:
    """Has thoughts between `opens` and `closes` end after so many tokens of the reply: then `end`, which are
    `end_token_ids`, is put into it. `is_open`: the prompt has begun them.
    """

    tokens: int
    opens: str
    closes: str
    is_open: bool
    end: str
    end_token_ids: tuple[int, ...]

    def is_thinking(self, said: str) -> bool:
        """Reads a reply as far as it has come."""
        return (self.is_open or said.lstrip().startswith(self.opens.strip())) and self.closes not in said


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """`request_id` is unique in the fleet; `client_request_id` is the one of the HTTP request, for logs. `choice`
    counts those of the request. One that is `prompt_only`, as one that `embeds`, was asked for no token: that which
    an engine gives to every prompt is nobody's. `scored_tokens` as of GenerateRequest. `fills_context`: no `max_tokens`
    were asked for, and it ends where units' contexts do. `shares_prompt`: another choice of the request is charged for
    it. `weights` are those of the model that its prompt was made for (`ModelCard.weights`).
    """

    request_id: str
    choice: int = 0
    model: str
    prompt_token_ids: tuple[int, ...]
    prompt_param: str
    sampling: SamplingParams
    stop: tuple[str, ...]
    slo: Slo
    skip_special_tokens: bool = True
    shows_stop: bool = False
    cache_salt: str = ""
    gives_way: bool = False
    embeds: bool = False
    scored_tokens: tuple[int, ...] = ()
    prompt_only: bool = False
    fills_context: bool = False
    shares_prompt: bool = False
    reply: ReplyShape | None = None
    thinking: ThinkingBudget | None = None
    client_request_id: str = ""
    traceparent: str = ""
    weights: tuple[str | None, ...] = ()

    @property
    def exemplar(self) -> dict[str, str] | None:
        """Returns what names its trace beside a latency that was observed of it."""
        return {"trace_id": self.traceparent[3:35]} if self.traceparent else None

    @property
    def needed_tokens(self) -> int:
        """Tokens of the longest sequence that a unit must take to serve it."""
        return len(self.prompt_token_ids) + (1 if self.fills_context else self.sampling.max_tokens)

    @property
    def charged_prompt_tokens(self) -> int:
        return 0 if self.shares_prompt else len(self.prompt_token_ids)

    @property
    def shows_output(self) -> bool:
        """Says whether its tokens are the caller's: told, and charged."""
        return not (self.embeds or self.prompt_only)

    def admission_request(self, caller: Caller, *, came_s: float, deadline_s: float) -> AdmissionRequest:
        computes_all = self.sampling.prompt_logprobs is not None  # no cached prefix is of use to it
        return AdmissionRequest(
            request_id=self.request_id,
            model=self.model,
            prompt_tokens=len(self.prompt_token_ids),
            max_tokens=self.sampling.max_tokens,
            slo=self.slo,
            deadline_s=deadline_s,
            came_s=came_s,
            tenant=caller.tenant,
            priority=caller.priority,
            prefix=() if computes_all else prefix_names(self.model, self.prompt_token_ids, self.cache_salt),
            conversation=caller.conversation,
            constrained=self.sampling.structured_output is not None,
            fills_context=self.fills_context,
            param=self.prompt_param,
            weights=self.weights,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """`arguments` is JSON text, as far as the model keeps to it."""

    call_id: str
    name: str
    arguments: str


# One for each Delta, and a frozen dataclass takes several times as long to make.
class Output(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Holds what became final since the previous Output of its `choice`. `num_tokens` are the tokens that it now
    reflects, of them `reasoning_tokens` in the reasoning. `cached_tokens` of the prompt had their KV already; told
    once, as the `prompt` is where its log-probabilities were asked for, and the `embedding`, float32, of a
    generation that `embeds`. `stop` is the string that ended it, where one did, or `stop_token_id` the token where it
    was asked to end there. `unshown_tokens` came without a text: special ones, and those that a later token makes a
    character of. They keep the pace, so whoever measures it counts them; only the former are final. `is_reasoning`:
    those without a text belong to the reasoning.
    """

    text: str
    num_tokens: int
    choice: int = 0
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    token_ids: tuple[int, ...] = ()
    prompt: tuple[PromptToken, ...] = ()
    embedding: bytes = b""
    unshown_tokens: int = 0
    is_reasoning: bool = False
    finish: FinishReason | None = None
    stop: str = ""
    stop_token_id: int | None = None

    @property
    def stop_reason(self) -> str | int | None:
        """Returns which of the request's stop strings and tokens ended it. None: another end, the model's own too."""
        return self.stop or self.stop_token_id
