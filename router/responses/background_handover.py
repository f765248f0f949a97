"""Responses in the background of a gateway that goes: it works on, others take what comes, and say what was ended."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from router.responses.event_log import EventLog
from router.responses.response_store import ResponseStore

logger = logging.getLogger(__name__)

LOST_S = 30.0
_EVERY_S = 0.5
_MOST_SILENT = 3  # times in a row: then nobody is there for whom to go on

AskGateways = Callable[..., Awaitable[Sequence[Any]]]
"""As in `response_copies`: of all gateways that do not go."""


class HandedEvents(msgspec.Struct, array_like=True):
    """Holds what came of a response after the event `after`. Of one that nobody can follow there are no events."""

    response_id: str
    owner: str
    after: int
    events: list[bytes]
    is_over: bool


class BackgroundHandover:
    """Shares with `BackgroundResponses` what that works on, and the logs. `ask_gateways` reaches their
    `take_background`, here `take`.
    """

    def __init__(
        self,
        store: ResponseStore,
        running: Mapping[str, asyncio.Task[None]],
        logs: dict[str, tuple[str, EventLog]],
        ask_gateways: AskGateways,
        make_room: Callable[[], None],
    ) -> None:
        self._store = store
        self._running = running
        self._logs = logs
        self._ask_gateways = ask_gateways
        self._make_room = make_room
        self._taken_s: dict[str, float] = {}  # when logs that others still write to were last heard of

    async def finish(self) -> None:
        """Returns when all that is worked on has come to its end and others have its events, or when no other gateway
        answers: what comes could be read nowhere. It has no deadline: Serve has one, at which it ends the gateway.
        """
        told = dict.fromkeys(self._running, -1)  # by response, the number of the last event that others have
        silent = 0
        if told:
            logger.info("responses in the background are finished first", extra={"responses": len(told)})
        while told and silent < _MOST_SILENT:
            handed = [self._of(response_id, after) for response_id, after in told.items()]
            try:
                answers = await self._ask_gateways("take_background", handed)
            except Exception as error:  # whatever it is, it is tried again
                logger.debug("no gateway takes responses in the background", extra={"reason": repr(error)})
                answers = ()
            ended = [answer for answer in answers if isinstance(answer, list)]
            silent = 0 if ended else silent + 1
            if ended:
                told = {one.response_id: one.after + len(one.events) for one in handed if not one.is_over}
            for copy in [copy for copies in ended for copy in copies]:
                self._store.take(copy)
            await asyncio.sleep(_EVERY_S if told else 0)

    def _of(self, response_id: str, after: int) -> HandedEvents:
        owner, log = self._logs.get(response_id, ("", None))
        is_over = response_id not in self._running
        if log is None or log.is_dropped:
            return HandedEvents(response_id, owner, after, [], is_over)
        events = log.page(after)
        return HandedEvents(response_id, owner, after, events, is_over and after + len(events) == log.num_events - 1)

    def take(self, handed: Sequence[HandedEvents]) -> list[bytes] | None:
        """Returns copies of those that were cancelled or deleted here; None: they are this gateway's own."""
        if any(one.response_id in self._running for one in handed):
            return None
        now_s = asyncio.get_running_loop().time()
        for one in handed:
            if one.after == -1 and one.events and one.response_id not in self._logs:
                self._logs[one.response_id] = (one.owner, EventLog())
            _, log = self._logs.get(one.response_id, ("", None))
            if log is not None and one.after == log.num_events - 1:
                log.append(b"".join(one.events))
                self._taken_s[one.response_id] = now_s
                if one.is_over:
                    log.close()
                    del self._taken_s[one.response_id]
        self._make_room()
        return self._store.copies(one.response_id for one in handed if self._store.has_ended(one.response_id))

    def close_lost(self) -> None:
        """Ends the logs of gateways that were ended before they had finished: who follows them would wait for ever."""
        now_s = asyncio.get_running_loop().time()
        for response_id in [i for i, taken_s in self._taken_s.items() if now_s - taken_s >= LOST_S]:
            del self._taken_s[response_id]
            if response_id in self._logs:
                self._logs[response_id][1].close()
