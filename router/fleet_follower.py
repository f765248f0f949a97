"""Follows the fleet for a gateway: tells the control loop what clients ask for, and waits there for news of units."""

import asyncio
from collections.abc import Awaitable, Callable

from router.admission.demand_report import DemandReport
from router.serving.gateway import Gateway
from router.view import FleetNews

WAIT_S = 4.0
"""A control loop that is to end waits for those that wait, and takes a gateway that died for one of them."""

AskForNews = Callable[[DemandReport, tuple[int, ...] | None, float], Awaitable[FleetNews]]
"""By what clients asked for, the version that is known, and for how long the answer may wait for another. It is
cancelled where that becomes too long. Raises what the way to the control loop raises.
"""


class FleetFollower:
    def __init__(self, gateway: Gateway, ask: AskForNews, *, poll_s: float) -> None:
        """Looks every `poll_s` for what there is to tell while it waits."""
        self._gateway = gateway
        self._ask = ask
        self._poll_s = poll_s
        self._told: DemandReport | None = None
        self._known: tuple[int, ...] | None = None

    async def update_view(self) -> None:
        """Brings the gateway the next view: the one of now where it has something to tell, else one with news. Raises
        what the way to the control loop raises; what could not be told is told next time.
        """
        while (news := await self._news()) is None:
            pass
        self._known = news.version
        self._gateway.update_view(news.view)

    async def _news(self) -> FleetNews | None:
        """None: there is something to tell now."""
        report, before = self._gateway.demand_report(), self._told
        self._told = None
        wait_s = WAIT_S if report == before else 0.0
        asked = asyncio.ensure_future(self._ask(report, self._known, wait_s))
        try:
            # no deadline: `ask` has one
            while not (await asyncio.wait({asked}, timeout=self._poll_s))[0]:
                self._gateway.note_unreachable()
                if wait_s and self._gateway.demand_report() != report:
                    return None
            news = asked.result()
        finally:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        self._told = report
        return news


_MOST_PLAIN = 128  # half a second each


class NewsRefusals:
    """Doubles, with each refusal in a row, the plain questions that come before the next one for news; all releases
    understand those. In a rolling upgrade the control loop can stay an earlier one for long, or fail over an event that
    it is told with each question for news.
    """

    def __init__(self) -> None:
        self._next_plain = 1
        self._plain_left = 0

    @property
    def has_some(self) -> bool:
        return self._next_plain > 1

    def is_plain_next(self) -> bool:
        """Says whether the next question is to be a plain one, and counts it."""
        self._plain_left -= 1
        return self._plain_left >= 0

    def note(self) -> None:
        """A question for news was refused."""
        self._plain_left, self._next_plain = self._next_plain, min(2 * self._next_plain, _MOST_PLAIN)

    def clear(self) -> None:
        """One was answered, or another control loop may be there next time."""
        self._next_plain, self._plain_left = 1, 0
