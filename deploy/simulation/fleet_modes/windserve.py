"""Disaggregation whose decode engines help with prompts: WindServe (Feng et al., ISCA'25).

As published: prefill and decode instances; a prompt whose first token would come too late on the prefill instances is
dispatched to a decode instance with slack, which runs it in a stream of its own beside decode; its KV is there already.

Assumed, since the paper was not at hand: too late is later than the request's own TTFT target; slack is that a decode
step on half of the SMs meets its TBT target, with one dispatched prompt at a time; streams share as `StreamShared`
says. Not modelled: moving long decodes to prefill instances when KV runs short, and memory of a dispatched prompt until
its first token.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from deploy.simulation.engine import EngineDesign, OnTokens, SimulatedEngine
from deploy.simulation.event_queue import EventQueue
from deploy.simulation.fleet_modes.disaggregated import DisaggregatedUnit
from deploy.simulation.fleet_modes.entry import FleetMode
from deploy.simulation.fleet_modes.split import Split
from deploy.simulation.units import UnitIdentity
from pdmux_actor.messages import FinishReason, GenerateRequest, LoadReport, TokenEvent
from profiler.latency import ChunkShape, LatencyModel
from profiler.specs import ModelSpec


class WindServeUnit:
    def __init__(
        self, identity: UnitIdentity, design: EngineDesign, split: Split, agenda: EventQueue, on_tokens: OnTokens
    ) -> None:
        self.identity = identity
        self.is_stale = True
        self._prompts = design
        self._specs = {m.info.model: m.info.spec for m in design.models}
        self._on_tokens = on_tokens
        self._dispatched: list[dict[str, GenerateRequest]] = [{} for _ in range(split.decode)]
        self._streams: list[SimulatedEngine] = []
        engines = range(split.decode)
        self._pair = DisaggregatedUnit(
            identity,
            design,
            split,
            agenda,
            self._pass_on,
            decode_latencies=[StreamShared(design.latency, partial(self._prefills_on, e)) for e in engines],
        )
        self.design = self._pair.design
        for engine in engines:
            shared = StreamShared(design.latency, partial(self._pair.is_decoding, engine))
            hand_over = partial(self._hand_over, engine)
            self._streams.append(SimulatedEngine(replace(design, latency=shared), agenda, hand_over))

    def submit(self, request: GenerateRequest) -> bool:
        self.is_stale = True
        engine = self._helper(request) if self._is_late(request) else None
        if engine is None:
            return self._pair.submit(request)
        self._dispatched[engine][request.request_id] = request
        self._streams[engine].submit(replace(request, sampling=replace(request.sampling, max_tokens=1)))
        return True

    def load_report(self) -> LoadReport:
        return self._pair.load_report_beside(self._streams)

    def _prefills_on(self, engine: int) -> bool:
        return self._streams[engine].is_busy

    def _is_late(self, request: GenerateRequest) -> bool:
        """Its first token would be, on the prefill engine with the least ahead of it."""
        prompts = [ChunkShape(n) for n in (self._pair.least_tokens_ahead(), len(request.prompt_token_ids)) if n]
        design, spec = self._prompts, self._specs[request.model]
        return design.latency.prefill_s(spec, prompts, design.device.num_sms) > request.slo.ttft_s

    def _helper(self, request: GenerateRequest) -> int | None:
        """Returns the decode engine with slack that has the fewest prompt tokens."""
        free = [e for e, prompts in enumerate(self._dispatched) if not prompts and self._has_slack(e, request)]
        return min(free, key=lambda e: (self._pair.decodes_on(e)[1], e), default=None)

    def _has_slack(self, engine: int, request: GenerateRequest) -> bool:
        requests, tokens = self._pair.decodes_on(engine)
        if not requests:
            return True
        design, spec = self._prompts, self._specs[request.model]
        contexts = [tokens // requests] * requests
        return design.latency.decode_s(spec, contexts, max(1, design.device.num_sms // 2)) <= request.slo.tbt_s

    def _hand_over(self, engine: int, events: Sequence[TokenEvent]) -> None:
        """First tokens go to the client, and the rest to the engine beside the stream."""
        passed_on = []
        for event in events:
            request = self._dispatched[engine].pop(event.request_id)
            goes_on = event.finish is FinishReason.LENGTH and request.sampling.max_tokens > 1
            passed_on.append(TokenEvent(request_id=event.request_id, tokens=event.tokens) if goes_on else event)
            if goes_on:
                first = tuple(token.token_id for token in event.tokens)
                self._pair.join(engine, replace(request, output_token_ids=first))
        self._pass_on(passed_on)

    def _pass_on(self, events: Sequence[TokenEvent]) -> None:
        self.is_stale = True
        self._on_tokens(events)


FLEET_MODE = FleetMode(
    name="windserve",
    rule="as disaggregated; prompts that would be late run on decode engines with slack, in a stream beside decode",
    source="WindServe (ISCA'25)",
    make=WindServeUnit,
)


class StreamShared:
    """`LatencyModel` of launches beside another stream, judged when they start. Half is an assumption: kernels of
    two streams compete as they come.
    """

    def __init__(self, latency: LatencyModel, is_other_busy: Callable[[], bool]) -> None:
        self._latency = latency
        self._is_other_busy = is_other_busy

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return self._latency.prefill_s(spec, chunks, self._left(sms))

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return self._latency.decode_s(spec, context_tokens, self._left(sms))

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        return self._latency.mixed_s(spec, chunks, context_tokens, self._left(sms))

    def _left(self, sms: int) -> int:
        return max(1, sms // 2) if self._is_other_busy() else sms
