"""Waits until a model's units say how long a sequence may be, and take one as long as a request needs;
and tells those who wait, or waited in vain, for a model that no unit has ready how far it is.
"""

import math
from collections.abc import Callable

from pdmux_actor.lease import ModelPhase
from router.admission.admission import MAX_RETRY_AFTER_S
from router.admission.load_forecast import LoadForecast, LoadOutlook
from router.errors import ModelNotFound, ModelUnavailable
from router.gateway_scheduler import GatewayScheduler
from router.limits import GatewayLimits
from router.live_view import ContextLengths, LiveView
from router.request_terms import Caller
from router.telemetry.fleet_event import RequestEvents
from router.telemetry.metrics import GatewayMetrics
from router.telemetry.service_report import ServiceReport


class ModelAbsence:
    """Call `update` when `view` has a new one."""

    def __init__(self, view: LiveView, clock: Callable[[], float]) -> None:
        self._view = view
        self._clock = clock
        self._forecast = LoadForecast()

    def update(self) -> None:
        self._forecast.update(self._view.current, self._clock())

    def outlook(self, model: str) -> LoadOutlook | None:
        """Returns how far the model is; None where a unit has it, or none is on its way to it."""
        return self._forecast.outlook(model, self._clock())

    def error(self, model: str, waited_s: float, retry_after_s: int) -> ModelUnavailable:
        """`retry_after_s` holds where loading units tell nothing."""
        outlook = self.outlook(model)
        if outlook is not None and outlook.ready_in_s is not None:
            retry_after_s = math.ceil(max(1.0, min(float(MAX_RETRY_AFTER_S), outlook.ready_in_s)))
        return ModelUnavailable(
            model=model,
            loading=ModelPhase.LOADING in self._view.phases(model),
            waited_s=waited_s,
            retry_after_s=retry_after_s,
            progress="" if outlook is None else outlook.text(),
            headers={} if outlook is None else outlook.headers(),
        )


class ContextWait:
    def __init__(
        self,
        view: LiveView,
        scheduler: GatewayScheduler,
        absence: ModelAbsence,
        metrics: GatewayMetrics,
        events: RequestEvents,
        limits: GatewayLimits,
        clock: Callable[[], float],
    ) -> None:
        self._view = view
        self._scheduler = scheduler
        self._absence = absence
        self._metrics = metrics
        self._events = events
        self._limits = limits
        self._clock = clock

    def patience_s(self, caller: Caller) -> float:
        """Returns how long a request of the caller waits for a unit."""
        return self._limits.hold_s if caller.ttft_s is None else caller.ttft_s

    async def until_taken(self, model: str, caller: Caller, report: ServiceReport, longest: int) -> ContextLengths:
        """Returns the model's context length, which its first ready unit tells, once it is enough again for the longest
        sequence, if it was so lately. Whoever waits here counts as demand and is in nobody's way.

        Raises:
            ModelUnavailable: no unit was ready in time.
            ModelNotFound: the fleet stopped offering the model.
        """
        started_s = self._clock()
        patience_s = self.patience_s(caller)
        with self._scheduler.holding(model, started_s, gives_way=not caller.is_judged):
            while (context := self._view.context(model)) is None or context.is_short_for_now(longest):
                if self._view.card(model) is None:
                    raise ModelNotFound(model=model)
                left_s = patience_s - (self._clock() - started_s)
                if left_s <= 0:
                    now_s = self._clock()
                    self._metrics.unserved.labels(model).inc(int(caller.is_judged))
                    self._events.failed(
                        model=model, unit="", request_id=caller.request_id, reason="no unit came for it in time"
                    )
                    retry_after_s = self._scheduler.gave_up(
                        model, report.prompt_tokens, now_s, is_judged=caller.is_judged
                    )
                    raise self._absence.error(model, now_s - started_s, retry_after_s)
                await self._view.changed(left_s)
        report.held_s = self._clock() - started_s
        self._metrics.cold_start.labels(model).observe(report.held_s)
        return context
