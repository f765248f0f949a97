"""Parts of replies, read by a process of its own: a prompt that takes long delays no reply, a reply no prompt."""

import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from router.errors import TokenizerUnavailable
from router.generation import ReplyShape
from router.limits import GatewayLimits
from router.text.calls import OpenReply, ReadReply, ReplyCall, ReplyParts, ReplyRead, TextRefused
from router.text.lane import StartText, TextLane, TextLaneFull, TextProcessLost, TextService, TextTooSlow

logger = logging.getLogger(__name__)

_SLOWEST_CHARACTERS_PER_S = 20_000
_RETRY_AFTER_S = 5
_ATTEMPTS = 3
_MAX_WAITING = 65_536  # a call for each step of a reply that streams


_Ask = Callable[[str, ReplyCall, int], Awaitable[object]]
# Patterns of a checkpoint's response template may take a time that grows with the square of the text, or worse.
_PATTERN_CHARACTERS_PER_S = 200_000
_TEXTS_PER_S = 2_000
_SLOW_NICENESS = 10


class OpenedReply:
    """One reply. Its process may be replaced in between: the new one reads it from the start."""

    def __init__(self, model: str, shape: ReplyShape, ask: _Ask, read_timeout_s: float) -> None:
        """`read_timeout_s` is how long a read may take that has little to read."""
        self._model = model
        self._shape = shape
        self._ask = ask
        self._read_timeout_s = read_timeout_s
        self._reply = uuid.uuid4().hex
        self._texts: list[str] = []
        self._is_open = False
        self._is_plain = False

    async def read(self, texts: Sequence[str], *, ends: bool) -> list[ReplyParts]:
        """Parts of each of `texts`. All of it is answer where the template cannot be used.

        Raises:
            TokenizerUnavailable: processes ended under the call.
        """
        new = list(texts)
        self._texts += new
        if self._is_plain:
            return [ReplyParts(text) for text in new]
        answer = await self._read(new, ends) if self._is_open else None
        for _ in range(_ATTEMPTS):
            if isinstance(answer, ReplyRead | TextRefused):
                break
            answer = await self._open()  # not open yet, or not any more
            if isinstance(answer, ReplyRead):
                answer = await self._read(self._texts, ends)
        if isinstance(answer, ReplyRead):
            return answer.parts[len(answer.parts) - len(new) :]
        logger.warning("a reply is passed on unread", extra={"model": self._model, "reason": repr(answer)})
        self._is_plain = True
        return [ReplyParts(text) for text in new]

    async def _open(self) -> object:
        self._is_open = True
        shape = self._shape
        call = OpenReply(0, self._reply, shape.template, shape.prompt_end, list(shape.tools))
        return await self._ask(self._model, call, len(shape.prompt_end))

    async def _read(self, texts: list[str], ends: bool) -> object:
        characters = sum(map(len, texts))
        timeout_s = self._read_timeout_s + characters / _PATTERN_CHARACTERS_PER_S + len(texts) / _TEXTS_PER_S
        return await self._ask(self._model, ReadReply(0, self._reply, texts, ends, timeout_s), characters)


class Replies:
    """Replies of models one of which took too long to read are read by a process that the others' do not wait for."""

    def __init__(self, limits: GatewayLimits, *, start: StartText) -> None:
        self._limits = limits
        self._lane = self._made_lane(partial(start, 0))
        self._slow_lane = self._made_lane(partial(start, _SLOW_NICENESS))
        self._slow_models: set[str] = set()

    def _made_lane(self, start: Callable[[], Awaitable[TextService]]) -> TextLane:
        limits = self._limits
        return TextLane(
            start,
            max_waiting=_MAX_WAITING,
            max_waiting_characters=limits.max_waiting_characters,
            load_timeout_s=limits.tokenizer_load_timeout_s,
        )

    def opened(self, model: str, shape: ReplyShape) -> OpenedReply:
        return OpenedReply(model, shape, self._ask, 2 * self._limits.template_timeout_s)

    def close(self) -> None:
        self._lane.close()
        self._slow_lane.close()

    async def _ask(self, model: str, call: ReplyCall, characters: int) -> object:
        answer = await self._asked(model, call, characters)
        if isinstance(answer, TextRefused) and answer.too_slow:
            self._slow_models.add(model)
        return answer

    async def _asked(self, model: str, call: ReplyCall, characters: int) -> object:
        lane = self._slow_lane if model in self._slow_models else self._lane
        # The first call imports the parser, which takes a second.
        limit_s = 10 * self._limits.template_timeout_s + characters / _SLOWEST_CHARACTERS_PER_S
        try:
            return await lane.answer(call, characters=characters, limit_s=limit_s)
        except TextTooSlow:
            return TextRefused(0, "to read it took too long", too_slow=True)
        except (TextProcessLost, TextLaneFull, OSError) as error:
            reason = f"the process that reads replies ended under this request ({error!r})"
            raise TokenizerUnavailable(model=model, reason=reason, retry_after_s=_RETRY_AFTER_S) from error
