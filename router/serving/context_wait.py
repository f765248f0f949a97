"""Waits until a model's units say how long a sequence may be, and take one as long as a request needs;
and tells those who wait, or waited in vain, for a model that no unit has ready how far it is.
"""

import math
from collections.abc import Callable

from pdmux_actor.lease import ModelPhase
from router.admission.admission import MAX_RETRY_AFTER_S
from router.admission.load_forecast import LoadForecast, LoadOutlook
from router.errors import ModelLoadFailed, ModelNotFound, ModelUnavailable
from router.gateway_scheduler import GatewayScheduler
from router.limits import GatewayLimits
from router.live_view import ContextLengths, LiveView
from router.request_terms import Caller
from router.telemetry.fleet_event import RequestEvents
from router.telemetry.metrics import GatewayMetrics
from router.telemetry.service_report import ServiceReport

_FAILED_RETRY_AFTER_S = 30  # units try again after pauses of up to a minute


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


def load_failed(model: str, reason: str) -> ModelLoadFailed:
    return ModelLoadFailed(model=model, reason=reason, retry_after_s=_FAILED_RETRY_AFTER_S)


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
            ModelLoadFailed: none will be.
            ModelNotFound: the fleet stopped offering the model.
        """
        started_s = self._clock()
        patience_s = self.patience_s(caller)
        with self._scheduler.holding(model, started_s, gives_way=not caller.is_judged):
            while (context := self._view.context(model)) is None or context.is_short_for_now(longest):
                if self._view.card(model) is None:
                    raise ModelNotFound(model=model)
                waited_s = self._clock() - started_s
                if (reason := self._view.load_failure(model)) is not None:  # however long others may wait
                    failure = load_failed(model, reason)
                    self._give_up(model, caller, report, str(failure))
                    raise failure
                if waited_s >= patience_s:
                    retry_after_s = self._give_up(model, caller, report, "no unit came for it in time")
                    raise self._absence.error(model, waited_s, retry_after_s)
                await self._view.changed(patience_s - waited_s)
        report.held_s = self._clock() - started_s
        self._metrics.cold_start.labels(model).observe(report.held_s)
        return context

    def _give_up(self, model: str, caller: Caller, report: ServiceReport, reason: str) -> int:
        """Returns when to try again."""
        self._metrics.unserved.labels(model).inc(int(caller.is_judged))
        self._events.failed(model=model, unit="", request_id=caller.request_id, reason=reason)
        return self._scheduler.gave_up(model, report.prompt_tokens, self._clock(), is_judged=caller.is_judged)
