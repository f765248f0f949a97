"""Asks an OpenAI-compatible endpoint for one streamed chat answer."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from deploy.environment import bearer_headers
from deploy.errors import ChatFailed
from deploy.inspection.fleet_report import path_of, reaching
from traces.completion_stream import error_message

_PATH = "/v1/chat/completions"
_CONNECT_S = 10.0
_LOADING = ": loading "


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPiece:
    """Holds what one event of the stream adds. `loading` tells how far a model is that loads before it answers;
    `tokens` is the server's count, which comes last where it comes at all.
    """

    thought: str = ""
    text: str = ""
    loading: str = ""
    finish_reason: str | None = None
    tokens: int | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


def chat_pieces(
    url: str,
    *,
    model: str,
    messages: Sequence[Mapping[str, str]],
    settings: Mapping[str, float],
    timeout_s: float,
    api_key: str | None,
) -> Generator[ChatPiece]:
    """Yields the answer as it comes. `settings` are further fields of the request; `timeout_s` bounds every silence.
    Raises FleetUnreachable, and ChatFailed: the server refused it, ended it with an error or left it without an end.
    """
    asked = {"model": model, "messages": list(messages), "stream": True, **settings}
    body = {**asked, "stream_options": {"include_usage": True}}
    timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_S))
    headers = bearer_headers(api_key)
    with (
        reaching(url),
        httpx.stream(
            "POST", path_of(url, _PATH), json=body, headers=headers, timeout=timeout, trust_env=False
        ) as reply,
    ):
        if reply.status_code != 200:
            raise ChatFailed(model=model, reason=error_message(reply.read()) or f"{_PATH} answers {reply.status_code}")
        is_whole = False
        for line in reply.iter_lines():
            if line.startswith(_LOADING):
                yield ChatPiece(loading=line.removeprefix(": "))
            elif line.startswith("data:"):
                data = line.removeprefix("data:").strip()
                is_whole = is_whole or data == "[DONE]"
                if data and data != "[DONE]":
                    yield from _pieces(model, data.encode())
        if not is_whole:
            raise ChatFailed(model=model, reason="the stream ended in the middle of the answer")


def _pieces(model: str, data: bytes) -> Iterator[ChatPiece]:
    try:
        event = msgspec.json.decode(data, type=_Event)
    except msgspec.DecodeError as error:
        reason = f"{_PATH} answers with what is no event of a chat: {data[:80].decode(errors='replace')}"
        raise ChatFailed(model=model, reason=reason) from error
    if event.error is not None:
        raise ChatFailed(model=model, reason=error_message(data))
    for choice in event.choices:
        thought = choice.delta.reasoning_content or choice.delta.reasoning or ""
        yield ChatPiece(thought=thought, text=choice.delta.content or "", finish_reason=choice.finish_reason)
    if event.usage is not None:
        yield ChatPiece(tokens=event.usage.completion_tokens)
