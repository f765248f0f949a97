"""OpenTelemetry spans of what an engine did for a request, read off its decision log when the request is over."""

import asyncio
import logging
import math
import time
from collections.abc import Iterable, Sequence
from itertools import groupby

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pdmux_actor.messages import GenerateRequest
from pdmux_actor.scheduling.decision import Decision, DecisionKind, LogExcerpt
from pdmux_actor.serving.actor import ReadSteps

logger = logging.getLogger(__name__)

_NS = 1_000_000_000
_GATHER_S = 0.5  # requests that end within this share one reading of the log
_MOST_WAITING = 256
_SLACK_S = 0.5  # until the engine is asked


class StepSpans:
    """Spans below that of a request's gateway: one for each launch that computed a part of its prompt, and one for each
    run of decode steps under the same partition.
    """

    def __init__(self, processor: SpanProcessor, *, unit_id: str, version: str, read: ReadSteps) -> None:
        resource = Resource.create({"service.name": "muxfleet-unit", "service.instance.id": unit_id})
        self._provider = TracerProvider(resource=resource, sampler=ALWAYS_ON)  # the gateway has chosen
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("muxfleet", version)
        self._unit_id = unit_id
        self._read = read
        self._ended: list[GenerateRequest] = []
        self._began_s = math.inf  # the first of them
        self._writing: asyncio.Task[None] | None = None

    def ended(self, request: GenerateRequest, lasted_s: float) -> None:
        """Returns at once."""
        if len(self._ended) < _MOST_WAITING:
            self._ended.append(request)
            self._began_s = min(self._began_s, time.monotonic() - lasted_s)
            if self._writing is None:
                self._writing = asyncio.create_task(self._write_soon())

    async def close(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        await asyncio.to_thread(self._provider.shutdown)

    async def _write_soon(self) -> None:
        await asyncio.sleep(_GATHER_S)
        ended, self._ended, self._writing = self._ended, [], None
        within_s, self._began_s = time.monotonic() - self._began_s + _SLACK_S, math.inf
        try:
            excerpt = await self._read(tuple(request.request_id for request in ended), within_s)
        except Exception as error:  # the engine has died, or hangs: traces are the least of it
            logger.info("steps are not traced", extra={"requests": len(ended), "reason": repr(error)})
            return
        for request in ended:
            self._write(request, excerpt)

    def _write(self, request: GenerateRequest, excerpt: LogExcerpt) -> None:
        parent = TraceContextTextMapPropagator().extract({"traceparent": request.traceparent})
        epoch_s = excerpt.unix_s - excerpt.now_s
        own = [d for d in excerpt.decisions if request.request_id in d.request_ids and d.finished_s is not None]
        for run in runs_of(own):
            self._write_run(run, parent, epoch_s)

    def _write_run(self, run: Sequence[Decision], parent: Context, epoch_s: float) -> None:
        first, last = run[0], run[-1]
        measured_s = [d.measured_s or 0.0 for d in run]
        began_s = first.now_s if first.started_s is None else first.started_s
        ended_s = last.now_s if last.finished_s is None else last.finished_s
        span = self._tracer.start_span(
            f"engine {first.kind}",
            context=parent,
            start_time=int((epoch_s + began_s) * _NS),
            attributes={
                "muxfleet.unit": self._unit_id,
                "muxfleet.model": first.model,
                "muxfleet.prefill_sms": first.prefill_sms,
                "muxfleet.decode_sms": first.part_sms or first.decode_sms,
                "muxfleet.launches": len(run),
                "muxfleet.requests": max(d.num_decoding + len(d.chunks) for d in run),
                "muxfleet.prompt_tokens": sum(d.prompt_tokens for d in run),
                "muxfleet.steps": sum(d.steps for d in run),
                "muxfleet.busy_seconds": sum(measured_s),
                "muxfleet.longest_seconds": max(measured_s),
                "muxfleet.predicted_seconds": sum(d.predicted_s for d in run),
            },
        )
        if first.kind is DecisionKind.PREFILL:
            span.set_attribute("muxfleet.layers", f"[{first.first_layer}, {first.last_layer})")
        span.end(end_time=int((epoch_s + ended_s) * _NS))


def runs_of(decisions: Iterable[Decision]) -> list[Sequence[Decision]]:
    """Decode steps that followed each other under one partition are one run; any other launch is one of its own."""

    def place(decision: Decision) -> tuple[object, ...]:
        if decision.kind is not DecisionKind.DECODE:
            return (decision.index,)
        return decision.kind, decision.prefill_sms, decision.decode_sms, decision.part_sms

    return [tuple(run) for _, run in groupby(decisions, place)]
