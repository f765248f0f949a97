"""Holds requests until their turn: the asyncio side of admission."""

import asyncio
from collections.abc import Callable

from router.admission.admission import Admit, NoCapacity, Outcome, Queue, Shed
from router.admission_request import AdmissionRequest
from router.errors import ModelUnavailable, Overloaded
from router.gateway_scheduler import GatewayScheduler


class WaitingRequests:
    """Call `pump` when something may have made room: a view came, a request ended. Time alone it watches itself."""

    def __init__(
        self,
        scheduler: GatewayScheduler,
        *,
        clock: Callable[[], float],
        unavailable: Callable[[str, float, int], ModelUnavailable],
    ) -> None:
        """`unavailable` makes the error of a model, from the seconds that were waited and those to wait."""
        self._scheduler = scheduler
        self._clock = clock
        self._unavailable = unavailable
        self._waiting: dict[str, asyncio.Future[Outcome]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self, request: AdmissionRequest, on_wait: Callable[[str], None]) -> Admit:
        """The caller owes the scheduler an `end` for what it returns. `on_wait` is told what a request waits for.

        Raises:
            Overloaded: it is turned away, now or when its time is up.
            ModelUnavailable: no unit had the model ready in time.
        """
        came_s = self._clock()
        decision = self._scheduler.offer(request, came_s)
        if isinstance(decision, Queue):
            on_wait(self._scheduler.admission.why_waits(request, decision.choice))
        outcome = await self._outcome(request) if isinstance(decision, Queue) else decision
        match outcome:
            case Admit():
                return outcome
            case Shed(retry_after_s=retry_after_s):
                raise Overloaded(model=request.model, retry_after_s=retry_after_s)
            case NoCapacity(retry_after_s=retry_after_s):
                raise self._unavailable(request.model, self._clock() - came_s, retry_after_s)

    def pump(self) -> None:
        for request, outcome in self._scheduler.pump(self._clock()):
            self._waiting.pop(request.request_id).set_result(outcome)
        self._set_timer()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for waiting in self._waiting.values():
            waiting.cancel()

    async def _outcome(self, request: AdmissionRequest) -> Outcome:
        waiting: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[request.request_id] = waiting
        self.pump()
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:  # the client left
            if waiting.done() and not waiting.cancelled() and isinstance(waiting.result(), Admit):
                self._scheduler.end(request.request_id, finished=False)
            elif self._waiting.pop(request.request_id, None) is not None:
                self._scheduler.withdraw(request.request_id)
            self.pump()
            raise

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_s = self._scheduler.next_pump_s()
        if next_s is not None and self._waiting:
            delay_s = min(max(0.0, next_s - self._clock()), 3600.0)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.pump)
