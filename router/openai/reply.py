"""Defines what both kinds of replies share."""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.frames import PromptToken, TokenLogprob
from router.errors import RouterError
from router.generation import Output, ToolCall

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """`cached_tokens` are those of the prompt whose KV was there, `reasoning_tokens` those of the completion that
    belong to its reasoning.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }


@dataclass(slots=True)
class Choice:
    """Holds what one choice has said so far."""

    texts: list[str] = field(default_factory=list)
    reasonings: list[str] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prompt: tuple[PromptToken, ...] = ()
    num_tokens: int = 0
    finish: FinishReason | None = None
    stop: str = ""
    stop_reason: str | int | None = None

    def add(self, output: Output) -> None:
        self.texts.append(output.text)
        self.reasonings.append(output.reasoning)
        self.tool_calls.extend(output.tool_calls)
        self.logprobs.extend(output.logprobs)
        self.token_ids.extend(output.token_ids)
        self.prompt = self.prompt or output.prompt
        self.num_tokens += output.num_tokens
        self.finish, self.stop, self.stop_reason = output.finish, output.stop, output.stop_reason

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def reasoning(self) -> str:
        return "".join(self.reasonings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """Fields that every object of one reply repeats. `service_tier` where the request asked for one."""

    reply_id: str
    model: str
    created_s: int
    service_tier: str | None = None

    def fields(self, kind: str) -> dict[str, Any]:
        said = {"id": self.reply_id, "object": kind, "created": self.created_s, "model": self.model}
        return said if self.service_tier is None else {**said, "service_tier": self.service_tier}


def new_head(prefix: str, model: str, *, service_tier: str | None = None) -> ReplyHead:
    """`prefix`: clients tell by it, as the API has it, whose answers these are."""
    reply_id = f"{prefix}{uuid.uuid4().hex}"
    return ReplyHead(reply_id=reply_id, model=model, created_s=int(time.time()), service_tier=service_tier)


class ReplyFormat(Protocol):
    """Says how outputs look on the wire. One instance serves one request."""

    def events(self, index: int, output: Output, usage: Usage | None) -> bytes:
        """Server-sent events for one Output; with `usage`, each event carries the usage so far."""
        ...

    def usage_event(self, usage: Usage) -> bytes: ...

    def failed_event(self, error: RouterError) -> bytes:
        """Tells of an error in the midst of the events, before the event of errors that all APIs end with."""
        ...

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes: ...


class EventEncoder:
    """Encodes the events of one stream; the part that they share is encoded once."""

    def __init__(self, head: ReplyHead, kind: str, *, usage_is_asked: bool) -> None:
        self._before = b"data: " + _encode(head.fields(kind))[:-1] + b',"choices":['
        self._after = b'],"usage":null}\n\n' if usage_is_asked else b"]}\n\n"

    def choice(
        self, choice: dict[str, Any], usage: Usage | None, *, prompt_token_ids: Sequence[int] | None = None
    ) -> bytes:
        """Encodes an event. It carries `prompt_token_ids` beside its choice, as vLLM's first event of a chat does."""
        if prompt_token_ids is not None:
            told = {"prompt_token_ids": prompt_token_ids, "usage": None if usage is None else usage.to_json()}
            return self._before + _encode(choice) + b"]," + _encode(told)[1:] + b"\n\n"
        if usage is not None:
            return self._before + _encode(choice) + b'],"usage":' + _encode(usage.to_json()) + b"}\n\n"
        return self._before + _encode(choice) + self._after

    def content(self, index: int, text: str) -> bytes:
        """Encodes the event of a chat that has nothing but text: `choice` would build the same of two dicts."""
        choice = b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}' % (index, _encode(text))
        return self._before + choice + self._after

    def usage(self, usage: Usage) -> bytes:
        return self._before + b'],"usage":' + _encode(usage.to_json()) + b"}\n\n"


def finish_name(finish: FinishReason) -> str:
    assert finish in (FinishReason.STOP, FinishReason.LENGTH), f"{finish} is an error, not an answer"
    return finish.value


_NOTHING: Mapping[str, Any] = MappingProxyType({})


def document(
    head: ReplyHead, kind: str, choices: Sequence[dict[str, Any]], usage: Usage, extra: Mapping[str, Any] = _NOTHING
) -> bytes:
    return _encode({**head.fields(kind), "choices": choices, "usage": usage.to_json(), **extra})
