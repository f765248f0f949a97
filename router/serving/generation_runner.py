"""One generation from the door to its last token: admission, the units, the clock and the books."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from router.admission.admission import Admit, NoCapacity, Outcome, Queue, Shed
from router.errors import (
    InvalidRequest,
    ModelLoadFailed,
    ModelNotFound,
    ModelUnavailable,
    Overloaded,
    RouterError,
    WeightsChanged,
)
from router.gateway_scheduler import GatewayScheduler
from router.generation import Generation, Output
from router.limits import GatewayLimits
from router.request_terms import AdmissionRequest, Caller
from router.routing.routing import UnitChoice
from router.serving.generation_relay import GenerationRelay, gateway_ends
from router.telemetry.fleet_event import RequestEvents
from router.telemetry.metrics import GatewayMetrics, GenerationStopwatch
from router.telemetry.service_report import ServiceReport


class WaitingRequests:
    """Call `pump` when something may have made room: a view came, a request of a model ended; after a view `refuse`,
    too. Time alone it watches itself.
    """

    def __init__(
        self,
        scheduler: GatewayScheduler,
        *,
        clock: Callable[[], float],
        unavailable: Callable[[str, float, int], ModelUnavailable],
        in_vain: Callable[[AdmissionRequest], RouterError | None] = lambda request: None,
    ) -> None:
        """`unavailable` makes the error of a model, from the seconds that were waited and those to wait; `in_vain`
        says why waiting for a unit makes no sense for a request, whatever comes.
        """
        self._scheduler = scheduler
        self._clock = clock
        self._unavailable = unavailable
        self._in_vain = in_vain
        self._waiting: dict[str, tuple[AdmissionRequest, asyncio.Future[Outcome]]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}  # by the name of a group of rivals
        self._is_closed = False

    async def enter(self, request: AdmissionRequest, on_wait: Callable[[str], None]) -> Admit:
        """The caller owes the scheduler an `end` for what it returns. `on_wait` is told what a request waits for.

        Raises:
            Overloaded: it is turned away, now or when its time is up.
            ModelUnavailable: no unit had the model ready in time.
            GatewayNotReady: the gateway ends.
            RouterError: it would wait, or has begun to wait, in vain.
        """
        if self._is_closed:
            raise gateway_ends()
        if (error := self._in_vain(request)) is not None:
            raise error
        came_s = self._clock()
        decision = self._scheduler.offer(request, came_s)
        outcome = await self._outcome(request, decision, on_wait) if isinstance(decision, Queue) else decision
        match outcome:
            case Admit():
                return outcome
            case Shed(retry_after_s=retry_after_s):
                raise Overloaded(model=request.model, retry_after_s=retry_after_s)
            case NoCapacity(retry_after_s=retry_after_s):
                raise self._unavailable(request.model, self._clock() - came_s, retry_after_s)

    def pump(self, model: str | None = None) -> None:
        """`model`: only for what competes with it for units."""
        for request, outcome in self._scheduler.pump(self._clock(), model):
            _, waiting = self._waiting.pop(request.request_id)
            waiting.set_result(outcome)
        if model is not None:
            self._set_timer(self._scheduler.rivals(model))
            return
        self._cancel_timers()
        for rivals in self._scheduler.rivals_that_wait():
            self._set_timer(rivals)

    def refuse(self) -> None:
        """Answers those that wait in vain."""
        refused = [(r, w, error) for r, w in self._waiting.values() if (error := self._in_vain(r)) is not None]
        for request, waiting, error in refused:
            self._end(request, waiting, error)
        if refused:
            self.pump()

    def close(self) -> None:
        """Answers what waits: a request of several choices is read by a task that none of them may leave without a
        word.
        """
        self._is_closed = True
        for request, waiting in list(self._waiting.values()):
            self._end(request, waiting, gateway_ends())
        self._cancel_timers()

    def _end(self, request: AdmissionRequest, waiting: asyncio.Future[Outcome], error: RouterError) -> None:
        del self._waiting[request.request_id]
        self._scheduler.withdraw(request.request_id)
        waiting.set_exception(error)

    async def _outcome(self, request: AdmissionRequest, queued: Queue, on_wait: Callable[[str], None]) -> Outcome:
        waiting: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[request.request_id] = request, waiting
        self.pump(request.model)
        if waiting.done():
            return waiting.result()
        on_wait(self._scheduler.admission.why_waits(request, queued.choice))
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:  # the client left
            if waiting.done():
                if waiting.exception() is None and isinstance(waiting.result(), Admit):
                    self._scheduler.end(request.request_id, self._clock(), finished=False)
            elif self._waiting.pop(request.request_id, None) is not None:
                self._scheduler.withdraw(request.request_id)
            self.pump(request.model)
            raise

    def _set_timer(self, rivals: str) -> None:
        if (timer := self._timers.pop(rivals, None)) is not None:
            timer.cancel()
        next_s = self._scheduler.next_pump_s(rivals)
        if next_s is not None and not self._is_closed:
            delay_s = min(max(0.0, next_s - self._clock()), 3600.0)
            self._timers[rivals] = asyncio.get_running_loop().call_later(delay_s, self.pump, rivals)

    def _cancel_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


class GenerationRunner:
    def __init__(
        self,
        *,
        scheduler: GatewayScheduler,
        room: WaitingRequests,
        dispatcher: GenerationRelay,
        metrics: GatewayMetrics,
        events: RequestEvents,
        limits: GatewayLimits,
        clock: Callable[[], float],
        spend: Callable[[str, int], None],
    ) -> None:
        """`spend` charges tokens to an API key."""
        self._scheduler = scheduler
        self._room = room
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._events = events
        self._limits = limits
        self._clock = clock
        self._spend = spend
        self._reports: dict[str, ServiceReport] = {}  # of generations that were admitted

    async def run(self, generation: Generation, caller: Caller, report: ServiceReport) -> AsyncGenerator[Output, None]:
        """Runs a generation as `GenerationRelay.run` does; raises what admission raises, too."""
        started_s = self._clock()
        # Each input of a request for embeddings waits for those before it, and counts from its own turn.
        came_s = started_s if generation.embeds else report.started_s
        deadline_s = started_s + self._limits.hold_s if caller.ttft_s is None else came_s + caller.ttft_s
        request = generation.admission_request(caller, came_s=came_s, deadline_s=deadline_s)
        was_cold = not self._scheduler.is_ready(generation.model)
        try:
            with self._metrics.queued.labels(generation.model).track_inprogress():
                admitted = await self._room.enter(request, report.waits)
        except Overloaded:
            self._metrics.shed.labels(generation.model).inc(int(caller.is_judged))
            self._events.shed(model=generation.model, request_id=caller.request_id)
            raise
        except (ModelUnavailable, ModelLoadFailed) as error:
            self._metrics.unserved.labels(generation.model).inc(int(caller.is_judged))
            self._note_failure(generation, "", error)
            raise
        now_s = self._clock()
        choice = admitted.choice
        cold_s = now_s - started_s if was_cold else None
        self._note_admission(generation, choice, queue_s=now_s - came_s, cold_s=cold_s)
        report.admitted(
            choice.unit_id,
            now_s,
            cold_s=cold_s or 0.0,
            predicted_ttft_s=choice.predicted_ttft_s,
            prefix_tokens=choice.prefix_tokens,
            ahead_s=choice.before_s,
        )
        self._reports[generation.request_id] = report
        stopwatch = self._metrics.stopwatch(generation.model, generation.slo, came_s, generation.exemplar)
        finished = False
        try:
            with self._metrics.in_flight.labels(generation.model).track_inprogress():
                async with aclosing(self._dispatcher.run(generation, choice)) as outputs:
                    async for output in outputs:
                        self._note(generation, output, stopwatch, report, choice, now_s)
                        finished = output.finish is not None
                        yield output
        except Exception as error:
            if _is_failure(error):
                self._metrics.failed.labels(generation.model).inc(int(caller.is_judged))
                self._note_failure(generation, choice.unit_id, error)
            raise
        finally:
            stopwatch.on_end()
            del self._reports[generation.request_id]
            self._charge(caller, generation.charged_prompt_tokens + stopwatch.num_tokens)
            self._scheduler.end(
                generation.request_id,
                self._clock(),
                finished=finished,
                ttft_met=stopwatch.ttft_met,
                tbt_met=stopwatch.tbt_met,
            )
            self._room.pump(generation.model)

    def _note_admission(
        self, generation: Generation, choice: UnitChoice, *, queue_s: float, cold_s: float | None
    ) -> None:
        """`cold_s` is the part of the wait in which no unit had the model ready; None: one had."""
        metrics, model, exemplar = self._metrics, generation.model, generation.exemplar
        metrics.queue_time.labels(model).observe(queue_s, exemplar)
        if cold_s is not None:
            metrics.cold_start.labels(model).observe(cold_s, exemplar)
        metrics.choices.labels(choice.reason).inc()
        metrics.prompt_tokens.labels(model).inc(generation.charged_prompt_tokens)
        if not generation.shares_prompt:
            metrics.prefix_tokens.labels(model).inc(choice.prefix_tokens)

    def _charge(self, caller: Caller, tokens: int) -> None:
        self._spend(caller.key_id, tokens)
        if caller.key_id:
            self._metrics.key_generations.labels(caller.tenant).inc()
            self._metrics.key_tokens.labels(caller.tenant).inc(tokens)

    def moved(self, generation: Generation, unit: str, reason: str) -> None:
        """Notes that a generation has lost its unit and goes on."""
        self._reports[generation.request_id].moved(unit, reason, self._clock())
        self._metrics.continuations.labels(generation.model).inc()
        self._events.moved(model=generation.model, unit=unit, request_id=generation.client_request_id, reason=reason)

    def _note_failure(self, generation: Generation, unit: str, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        self._events.failed(model=generation.model, unit=unit, request_id=generation.client_request_id, reason=reason)

    def _note(
        self,
        generation: Generation,
        output: Output,
        stopwatch: GenerationStopwatch,
        report: ServiceReport,
        choice: UnitChoice,
        admitted_s: float,
    ) -> None:
        if not (output.num_tokens or output.unshown_tokens) and output.finish is None:
            return  # what is known of the prompt alone comes before the first token, and is none
        now_s = self._clock()
        told_tokens = output.num_tokens if generation.shows_output else 0
        gap_s = stopwatch.on_output(told_tokens, now_s)
        report.output_tokens += told_tokens
        if gap_s is None:
            if choice.predicted_ttft_s:
                error_s = abs(now_s - admitted_s - choice.predicted_ttft_s)
                self._metrics.prediction_error.labels(generation.model).observe(error_s)
            report.first_token(now_s)
        else:
            report.worst_gap_s = max(report.worst_gap_s, gap_s)
        if self._scheduler.produced(generation.request_id, output.num_tokens, now_s):
            self._room.pump(generation.model)
        if output.finish is not None:
            stopwatch.on_finish(is_judged=not generation.gives_way)
            if not (report.in_time or generation.gives_way):
                self._events.missed(generation.model, report)


def _is_failure(error: Exception) -> bool:
    """One that has not begun when weights change is prepared anew."""
    if isinstance(error, WeightsChanged):
        return error.has_begun
    return not isinstance(error, InvalidRequest | ModelNotFound)
