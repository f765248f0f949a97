"""Turns messages and text into token ids, off the event loop: all of it is done by processes that can be killed.

Two of them: what is small goes to one, what takes long to the other, so that a large prompt delays large prompts only.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from router.errors import ContextLengthExceeded, InvalidRequest, Overloaded, TokenizerUnavailable
from router.limits import GatewayLimits
from router.text.calls import (
    Decoded,
    DecodeTokens,
    EncodeChat,
    Encoded,
    EncodeText,
    NameTokens,
    TextAnswer,
    TextRefused,
    TokenizerCall,
    TokenizerFailed,
    TokenizerGone,
    TokenizerKey,
    TokenizerLoaded,
    TokensNamed,
)
from router.text.lane import StartText, TextLane, TextLaneFull, TextProcess, TextProcessLost, TextService, TextTooSlow
from router.text.reasoning_efforts import effort_arguments
from router.view import ModelCard

logger = logging.getLogger(__name__)

_QUICK_CHARACTERS = 32 * 1024  # some 10 ms of work
_SLOWEST_CHARACTERS_PER_S = 20_000  # long words take a tokenizer longest: some 600,000 on an idle core
_LARGE_NICENESS = 10  # the event loop and the others' tokens come first
_RETRY_AFTER_S = 5
_RELOAD_AFTER_S = 15.0


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedChat:
    """`prompt_end` are the last characters of the text that the template made."""

    token_ids: list[int]
    prompt_end: str


class Tokenizers:
    """Keeps tokenizers by model source. Loaded when first asked for; what did not load is tried again after a while."""

    def __init__(
        self,
        limits: GatewayLimits,
        *,
        clock: Callable[[], float],
        start: StartText = TextProcess.start,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._quick = self._lane(partial(start, 0))
        self._large = self._lane(partial(start, _LARGE_NICENESS))
        self._loaded: dict[TokenizerKey, TokenizerLoaded] = {}
        self._loads: dict[TokenizerKey, asyncio.Task[TokenizerLoaded]] = {}
        self._failures: dict[TokenizerKey, _Failure] = {}
        self._slow_templates: set[TokenizerKey] = set()

    def _lane(self, start: Callable[[], Awaitable[TextService]]) -> TextLane:
        limits = self._limits
        return TextLane(
            start,
            max_waiting=limits.max_queued,
            max_waiting_characters=limits.max_waiting_characters,
            load_timeout_s=limits.tokenizer_load_timeout_s,
        )

    async def of(self, card: ModelCard) -> TokenizerLoaded:
        """Raises:
        TokenizerUnavailable: the source has no usable tokenizer, or the gateway cannot reach it.
        """
        key = _key(card)
        loaded = self._loaded.get(key)
        if loaded is not None:
            return loaded
        if self._failed_lately(key):
            raise TokenizerUnavailable(
                model=card.model, reason=self._failures[key].reason, retry_after_s=int(_RELOAD_AFTER_S)
            )
        load = self._loads.get(key)
        if load is None:
            load = self._loads[key] = asyncio.create_task(self._load(card, key))
            load.add_done_callback(lambda task: self._load_ended(key, task))
        return await asyncio.shield(load)  # a client that leaves does not stop the load for the others

    def preload(self, card: ModelCard) -> None:
        """Starts loading, if that is to be done; a failure is logged."""
        key = _key(card)
        if key not in self._loaded and key not in self._loads and not self._failed_lately(key):
            load = self._loads[key] = asyncio.create_task(self._load(card, key))
            load.add_done_callback(lambda task: self._load_ended(key, task))

    def is_loading(self, card: ModelCard) -> bool:
        return _key(card) in self._loads and not self.has_failed(card)

    def has_failed(self, card: ModelCard) -> bool:
        """Returns whether requests to the model are refused for want of a tokenizer."""
        return _key(card) in self._failures

    async def encode_chat(
        self,
        card: ModelCard,
        messages: Sequence[Mapping[str, Any]],
        template_arguments: Mapping[str, Any],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        effort: str | None = None,
        max_tokens: int,
        add_generation_prompt: bool = True,
        add_special_tokens: bool = False,
        continue_final_message: bool = False,
        param: str = "messages",
    ) -> EncodedChat:
        """`effort` is how much reasoning is asked for, for templates that can be told. Templates write special tokens
        themselves; `add_special_tokens` adds the tokenizer's. `param` is what the client calls the messages.

        Raises:
            InvalidRequest: the model has no chat template, or it does not render these messages with these arguments;
                or they are longer than the model's context of `max_tokens`.
            TokenizerUnavailable, Overloaded
        """
        loaded = await self.of(card)
        _check_template_arguments(loaded.template_variables, template_arguments)
        characters = sum(len(message["content"]) for message in messages)
        _check_characters(characters, loaded, max_tokens, param)
        characters += len(msgspec.json.encode([tools, [m["tool_calls"] for m in messages if "tool_calls" in m]]))
        variables = loaded.template_variables or ()
        of_effort = {} if effort is None else effort_arguments(variables, loaded.efforts, effort)
        key = _key(card)
        call = EncodeChat(
            call=0,
            tokenizer=key,
            messages=[dict(message) for message in messages],
            tools=[dict(tool) for tool in tools],
            template_arguments={**of_effort, **template_arguments},
            template_timeout_s=self._limits.template_timeout_s,
            max_tokens=self._limits.max_prompt_tokens,
            add_generation_prompt=add_generation_prompt,
            add_special_tokens=add_special_tokens,
            continue_final_message=continue_final_message,
        )
        answer = await self._ask(card, call, characters, param, is_slow=key in self._slow_templates)
        if isinstance(answer, TextRefused):
            self._note_slow(key, answer)
            raise InvalidRequest(
                f"The model's chat template refuses these messages: {answer.reason}"[:500],
                param=param,
                code="chat_template_error",
            )
        token_ids = self._token_ids(answer, param)
        return EncodedChat(token_ids=token_ids, prompt_end=answer.prompt_end if isinstance(answer, Encoded) else "")

    async def encode(
        self, card: ModelCard, text: str, *, add_special_tokens: bool, max_tokens: int, param: str = "prompt"
    ) -> list[int]:
        """Raises as `encode_chat`."""
        loaded = await self.of(card)
        _check_characters(len(text), loaded, max_tokens, param)
        call = EncodeText(
            call=0,
            tokenizer=_key(card),
            text=text,
            add_special_tokens=add_special_tokens,
            max_tokens=self._limits.max_prompt_tokens,
        )
        return self._token_ids(await self._ask(card, call, len(text), param), param)

    async def decode(self, card: ModelCard, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Raises as `encode_chat`."""
        await self.of(card)
        call = DecodeTokens(
            call=0, tokenizer=_key(card), token_ids=list(token_ids), skip_special_tokens=skip_special_tokens
        )
        answer = await self._ask(card, call, len(token_ids), "prompt")
        if isinstance(answer, TextRefused):
            raise InvalidRequest(f"These tokens are no text: {answer.reason}", param="prompt")
        assert isinstance(answer, Decoded), answer
        return answer.text

    async def names(self, card: ModelCard, token_ids: Sequence[int]) -> list[str]:
        """Returns what the vocabulary calls these tokens. Raises as `encode_chat`."""
        await self.of(card)
        call = NameTokens(call=0, tokenizer=_key(card), token_ids=list(token_ids))
        answer = await self._ask(card, call, len(token_ids), "prompt")
        assert isinstance(answer, TokensNamed), answer
        return answer.names

    def close(self) -> None:
        for load in self._loads.values():
            load.cancel()
        self._quick.close()
        self._large.close()

    async def _ask(
        self,
        card: ModelCard,
        call: TokenizerCall,
        characters: int,
        param: str,
        *,
        is_slow: bool = False,
    ) -> TextAnswer:
        lane = self._large if is_slow or characters > _QUICK_CHARACTERS else self._quick
        # A template that loops ends itself; what does not heed that is killed a little later.
        limit_s = 2 * self._limits.template_timeout_s + characters / _SLOWEST_CHARACTERS_PER_S
        try:
            answer = await lane.answer(call, characters=characters, limit_s=limit_s)
            if isinstance(answer, TokenizerGone):  # not in the lane's turn: others' text does not wait for a load
                await self._loaded_by(card, call.tokenizer, lane.reload(call.tokenizer))
                answer = await lane.answer(call, characters=characters, limit_s=limit_s)
        except TextLaneFull:
            raise Overloaded(model=card.model, retry_after_s=_RETRY_AFTER_S) from None
        except TextTooSlow:
            self._slow_templates.add(call.tokenizer)
            raise InvalidRequest(
                f"To turn this into tokens takes longer than {limit_s:.0f} s; send a shorter prompt.",
                param=param,
                code="prompt_too_slow",
            ) from None
        except (TextProcessLost, OSError) as error:
            reason = f"the process that works on text ended under this request ({error})"
            raise TokenizerUnavailable(model=card.model, reason=reason, retry_after_s=_RETRY_AFTER_S) from error
        if isinstance(answer, TokenizerGone):  # again, so soon: more are in use at once than are kept
            raise Overloaded(model=card.model, retry_after_s=_RETRY_AFTER_S)
        if isinstance(answer, TokenizerFailed):
            raise TokenizerUnavailable(model=card.model, reason=answer.reason, retry_after_s=_RETRY_AFTER_S)
        return answer

    def _token_ids(self, answer: TextAnswer, param: str) -> list[int]:
        if isinstance(answer, TextRefused):
            raise InvalidRequest(f"The prompt does not become tokens: {answer.reason}", param=param)
        assert isinstance(answer, Encoded), answer
        limit = self._limits.max_prompt_tokens
        if answer.num_tokens > limit:
            message = f"The prompt has {answer.num_tokens} tokens or more; this gateway takes {limit}."
            raise InvalidRequest(message, param=param)
        return answer.token_ids

    def _note_slow(self, key: TokenizerKey, refused: TextRefused) -> None:
        if refused.too_slow:
            logger.warning("a chat template does not end in time", extra={"source": key.source})
            self._slow_templates.add(key)

    async def _load(self, card: ModelCard, key: TokenizerKey) -> TokenizerLoaded:
        return await self._loaded_by(card, key, self._quick.load(key))

    async def _loaded_by(
        self, card: ModelCard, key: TokenizerKey, load: Awaitable[TokenizerLoaded | TokenizerFailed]
    ) -> TokenizerLoaded:
        try:
            answer = await load
            reason = answer.reason if isinstance(answer, TokenizerFailed) else ""
        except (TextProcessLost, TextTooSlow, OSError) as error:
            answer, reason = None, f"{type(error).__name__} {error}"
        if isinstance(answer, TokenizerLoaded):
            self._loaded[key] = answer
            self._failures.pop(key, None)
            return answer
        known = self._failures.get(key)
        if known is None or known.reason != reason:
            logger.error("tokenizer does not load", extra={"model": card.model, "source": key.source, "reason": reason})
        self._failures[key] = _Failure(reason, self._clock())
        self._loaded.pop(key, None)  # what was loaded once and forgotten is not tried with each request
        raise TokenizerUnavailable(model=card.model, reason=reason, retry_after_s=int(_RELOAD_AFTER_S))

    def _load_ended(self, key: TokenizerKey, load: asyncio.Task[TokenizerLoaded]) -> None:
        self._loads.pop(key, None)
        if not load.cancelled():
            load.exception()  # retrieved, so that asyncio does not log what `_load` has logged

    def _failed_lately(self, key: TokenizerKey) -> bool:
        failure = self._failures.get(key)
        return failure is not None and self._clock() - failure.at_s < _RELOAD_AFTER_S


def _key(card: ModelCard) -> TokenizerKey:
    return TokenizerKey(card.source, card.revision)


def _check_template_arguments(variables: Sequence[str] | None, arguments: Mapping[str, Any]) -> None:
    if variables is None:
        raise InvalidRequest(
            "This model has no chat template; use /v1/completions with a prompt in the model's own format.",
            param="messages",
            code="no_chat_template",
        )
    for name in arguments:
        if name not in variables:
            allowed = f"it takes {', '.join(map(repr, variables))}" if variables else "it takes none"
            raise InvalidRequest(
                f"The chat template of this model takes no {name[:100]!r} from a request: {allowed}.",
                param=f"chat_template_kwargs.{name[:100]}",
                code="unknown_parameter",
            )


def _check_characters(characters: int, loaded: TokenizerLoaded, max_tokens: int, param: str) -> None:
    """What cannot fit, whatever it says, is refused before anybody works on it."""
    per_token = loaded.characters_per_token
    if per_token is not None and characters > max_tokens * per_token:
        raise ContextLengthExceeded(
            max_model_len=max_tokens, prompt_tokens=-(-characters // per_token), max_tokens=None, param=param
        )
