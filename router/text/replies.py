"""Parts of replies, read by a process of its own: a prompt that takes long delays no reply, a reply no prompt."""

import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from router.errors import TokenizerUnavailable
from router.generation import ReplyShape
from router.limits import GatewayLimits
from router.text.calls import OpenReply, ReadReply, ReplyCall, ReplyParts, ReplyRead, TextRefused
from router.text.lane import StartText, TextLane, TextLaneFull, TextProcessLost, TextTooSlow

logger = logging.getLogger(__name__)

_SLOWEST_CHARACTERS_PER_S = 20_000
_RETRY_AFTER_S = 5
_ATTEMPTS = 3
_MAX_WAITING = 65_536  # a call for each step of a reply that streams


_Ask = Callable[[str, ReplyCall, int], Awaitable[object]]


class OpenedReply:
    """One reply. Its process may be replaced in between: the new one reads it from the start."""

    def __init__(self, model: str, shape: ReplyShape, ask: _Ask) -> None:
        self._model = model
        self._shape = shape
        self._ask = ask
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
        return await self._ask(self._model, ReadReply(0, self._reply, texts, ends), sum(map(len, texts)))


class Replies:
    def __init__(self, limits: GatewayLimits, *, start: StartText) -> None:
        self._limits = limits
        self._lane = TextLane(
            partial(start, 0),
            max_waiting=_MAX_WAITING,
            max_waiting_characters=limits.max_waiting_characters,
            load_timeout_s=limits.tokenizer_load_timeout_s,
        )

    def opened(self, model: str, shape: ReplyShape) -> OpenedReply:
        return OpenedReply(model, shape, self._ask)

    def close(self) -> None:
        self._lane.close()

    async def _ask(self, model: str, call: ReplyCall, characters: int) -> object:
        # The first call imports the parser, which takes a second.
        limit_s = 10 * self._limits.template_timeout_s + characters / _SLOWEST_CHARACTERS_PER_S
        try:
            return await self._lane.answer(call, characters=characters, limit_s=limit_s)
        except TextTooSlow:
            return TextRefused(0, "to read it took too long", too_slow=True)
        except (TextProcessLost, TextLaneFull, OSError) as error:
            reason = f"the process that reads replies ended under this request ({error!r})"
            raise TokenizerUnavailable(model=model, reason=reason, retry_after_s=_RETRY_AFTER_S) from error
