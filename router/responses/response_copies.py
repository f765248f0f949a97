"""Gives the fleet's other gateways what this one keeps of responses: a conversation outlives its replica."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from router.responses.response_store import ResponseStore

logger = logging.getLogger(__name__)

EVERY_S = 0.5
_JOIN_TRIES, _JOIN_EVERY_S = 5, 0.1  # of a new gateway to hear the others: before any is healthy, none can be asked
_JOIN_MOST_S = 5.0
_MOST_IDS = 256  # asked for at once

AskGateways = Callable[..., Awaitable[Sequence[Any]]]
"""Calls a method of every gateway replica, this one too, with these arguments. An answer of one that fails is its
exception. Raises where nobody can be asked.
"""


class ResponseCopies:
    """`ask_gateways` reaches the methods `kept_responses`, `told_responses` and `take_responses` of each replica, which
    are here `kept`, `told` and `take`.
    """

    def __init__(self, store: ResponseStore, ask_gateways: AskGateways, *, gateway_id: str) -> None:
        self._store = store
        self._ask_gateways = ask_gateways
        self._gateway_id = gateway_id
        self._has_asked = asyncio.Event()
        self._is_new = True

    async def join(self) -> None:
        """Returns when this gateway has what the others keep, soon where there are none or they are silent: a new
        gateway that counts as healthy is the end of an old one.

        It asks once more for what came while it waited for the fleet: others tell only those that are healthy.
        """
        if self._is_new:
            with suppress(Exception):  # `follow` goes on asking
                async with asyncio.timeout(_JOIN_MOST_S):
                    await self._has_asked.wait()
                    await self._take_over()
            self._is_new = False

    async def follow(self, num_gateways: Callable[[], int]) -> None:
        """Takes over what the others keep, then tells them what comes here, until it is cancelled: then the rest."""
        try:
            await self._follow(num_gateways)
        finally:
            if num_gateways() > 1:
                with suppress(Exception):  # nobody may be left
                    await self._tell()

    async def _follow(self, num_gateways: Callable[[], int]) -> None:
        was_answered, tries = False, 0
        while True:
            if not was_answered or num_gateways() > 1:  # a new control loop knows of fewer than there are
                try:
                    if not was_answered:
                        tries += 1
                        await self._take_over()
                        was_answered = True
                    await self._tell()
                except Exception as error:  # whatever it is, the next round tries again
                    logger.debug("gateways do not exchange responses now", extra={"reason": repr(error)})
            if was_answered or tries >= _JOIN_TRIES:
                self._has_asked.set()
            # What was answered meanwhile goes in pages, not one call for each.
            await asyncio.sleep(EVERY_S if self._has_asked.is_set() else _JOIN_EVERY_S)

    def kept(self) -> tuple[str, list[str]]:
        """Returns this gateway's id and those of its responses, the one that was not used for longest first."""
        return self._gateway_id, self._store.ids()

    def told(self, wanted: Mapping[str, Sequence[str]]) -> list[bytes]:
        """Returns the first of the responses that this gateway is asked for, as many as make a page."""
        return self._store.copies(wanted.get(self._gateway_id, ()))

    def take(self, copies: Sequence[bytes]) -> None:
        for copy in copies:
            self._store.take(copy)

    async def _take_over(self) -> None:
        found = [answer for answer in await self._ask_gateways("kept_responses") if not isinstance(answer, Exception)]
        own = set(self._store.ids())
        left = {gateway: [i for i in ids if i not in own] for gateway, ids in found if gateway != self._gateway_id}
        while True:
            asked: set[str] = set()
            wanted: dict[str, list[str]] = {}
            for gateway, ids in left.items():
                wanted[gateway] = [i for i in ids if i not in own and i not in asked][:_MOST_IDS]
                asked.update(wanted[gateway])
            if not asked:
                return
            for answer in await self._ask_gateways("told_responses", wanted):
                if not isinstance(answer, Exception):
                    self.take(answer)
            had, own = own, own | set(self._store.ids())
            if own == had:
                return  # those that had the rest are gone, or have forgotten it

    async def _tell(self) -> None:
        """In pages: what comes meanwhile is told with the next."""
        while True:
            told, page = self._store.fresh_copies()
            if not page:
                return
            await self._ask_gateways("take_responses", page)
            self._store.were_told(told)
