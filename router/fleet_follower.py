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
