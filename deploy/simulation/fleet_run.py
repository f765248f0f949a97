"""A whole fleet in virtual time: arrivals, gateways, units and heartbeats on one heap of events."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle

from deploy.simulation.agenda import Agenda
from deploy.simulation.engine import OnTokens
from deploy.simulation.gateway import Reception, SimulatedGateway, Stay
from deploy.simulation.prompts import simulated_prompt
from deploy.simulation.statistics import ModelStatistics
from deploy.simulation.streams import RequestStream
from deploy.simulation.units import SimulatedUnit, report_of
from deploy.workload import cut_to_context
from pdmux_actor.kv.capacity import longest_sequence_tokens
from pdmux_actor.messages import FinishReason, GenerateRequest, SamplingParams, Slo, TokenEvent
from router.ask import Ask
from router.limits import GatewayLimits
from router.prefix_index import prefix_names
from router.routing import UnitChoice
from router.view import FleetView, ModelCard, UnitView
from traces.record import TraceRecord
from traces.report import SloTarget

VIEW_PERIOD_S = 0.5  # units tell of themselves as often, and gateways hear of it at once
_PROGRESS_EVENTS = 2048

BuildUnits = Callable[[Agenda, OnTokens], Sequence[SimulatedUnit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetModel:
    model: str
    slo: Slo
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSample:
    """What a unit reported of its partition and its KV pool."""

    time_s: float
    unit_id: str
    prefill_sms: int
    decode_sms: int
    used_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOutcome:
    """`duration_s` is virtual, from the start to the last end. `gave_up`: it was stopped before all had ended."""

    models: Mapping[str, ModelStatistics]
    duration_s: float
    events: int
    steps: int
    gave_up: bool
    partitions: tuple[PartitionSample, ...] = ()

    def total(self) -> ModelStatistics:
        total = ModelStatistics()
        for statistics in self.models.values():
            total.merge(statistics)
        return total


@dataclass(slots=True)
class _Open:
    """A request that has not ended."""

    model: str
    arrival_s: float
    prompt_tokens: int
    stay: Stay
    first_s: float | None = None
    last_s: float = 0.0
    output_tokens: int = 0
    gaps_s: list[float] = field(default_factory=list)


class FleetRun:
    """One run over one stream. `give_up` is asked now and then, with the run, whether to stop early."""

    def __init__(
        self,
        *,
        models: Sequence[FleetModel],
        build_units: BuildUnits,
        stream: RequestStream,
        limits: GatewayLimits,
        gateways: int,
        sample_partitions: bool = False,
        window_s: float | None = None,
        give_up: Callable[["FleetRun"], bool] | None = None,
        on_progress: Callable[[int, float], None] | None = None,
    ) -> None:
        self.agenda = Agenda()
        self.statistics = {m.model: ModelStatistics(SloTarget(ttft_s=m.slo.ttft_s, tbt_s=m.slo.tbt_s)) for m in models}
        self._models = {m.model: m for m in models}
        self._stream = stream
        self._gateways = [
            SimulatedGateway(name=f"gateway-{i}", limits=limits, agenda=self.agenda) for i in range(gateways)
        ]
        self._next_gateway = cycle(self._gateways)
        self._open: dict[str, _Open] = {}
        self._units = list(build_units(self.agenda, self._on_tokens))
        self._of_id = {u.identity.unit_id: u for u in self._units}
        self._longest_tokens: dict[str, int] = {}
        for placed in (m for unit in self._units for m in unit.design.models):
            longest = longest_sequence_tokens(placed.info, placed.quota_blocks)
            self._longest_tokens[placed.info.model] = max(longest, self._longest_tokens.get(placed.info.model, 0))
        self._limits = limits
        self._placed = {m.info.model for unit in self._units for m in unit.design.models}
        self._waiting = 0
        self._reports: dict[str, UnitView] = {}
        self._records = enumerate(stream.records())
        self._last_end_s = 0.0
        self._sample_partitions = sample_partitions
        self._partitions: list[PartitionSample] = []
        self._window_s = float("inf") if window_s is None else window_s
        self._give_up = give_up
        self._gave_up = False
        self._arrivals_left = True
        self._on_progress = on_progress

    @property
    def expected_requests(self) -> int:
        return self._stream.count

    def overdue_requests(self) -> int:
        """Requests under way whose first token is later than its target."""
        now_s = self.agenda.clock.now_s
        return sum(
            (request.first_s or now_s) - request.arrival_s > self._models[request.model].slo.ttft_s
            for request in self._open.values()
        )

    def run(self) -> FleetOutcome:
        self._publish_view()
        self._await_next_arrival()
        while (self._arrivals_left or self._open or self._waiting) and self.agenda.clock.now_s < self._window_s:
            if not self.agenda.step():
                break
            if self.agenda.num_done % _PROGRESS_EVENTS == 0:
                self._tell_progress()
                if self._give_up is not None and self._give_up(self):
                    self._gave_up = True
                    break
        self._tell_progress()
        return FleetOutcome(
            models=self.statistics,
            duration_s=self.agenda.clock.now_s if self._gave_up or self._open else self._last_end_s,
            events=self.agenda.num_done,
            steps=sum(u.load_report().steps_total for u in self._units),
            gave_up=self._gave_up,
            partitions=tuple(self._partitions),
        )

    def _tell_progress(self) -> None:
        if self._on_progress is not None:
            ended = sum(s.finished + s.rejected + s.failed for s in self.statistics.values())
            self._on_progress(ended, self.agenda.clock.now_s)

    # ---- arrivals ----

    def _await_next_arrival(self) -> None:
        following = next(self._records, None)
        if following is None:
            self._arrivals_left = False
            return
        index, record = following
        self.agenda.at(record.arrival_s, lambda: self._arrive(index, record))

    def _arrive(self, index: int, record: TraceRecord) -> None:
        now_s = self.agenda.clock.now_s
        assert record.model is not None
        statistics = self.statistics[record.model]
        statistics.requests += 1
        self._waiting += 1
        self._ask(index, record, next(self._next_gateway), now_s)
        self._await_next_arrival()

    def _ask(self, index: int, record: TraceRecord, gateway: SimulatedGateway, now_s: float) -> None:
        assert record.model is not None
        model = self._models[record.model]
        if model.model not in self._placed:
            self._refuse(model.model)  # no unit will come within the patience of a client
            return
        fitting = cut_to_context(record, self._longest_tokens[model.model])
        self.statistics[model.model].cut += fitting is not record
        output_tokens = max(1, fitting.output_tokens)
        prompt = simulated_prompt(
            fitting, index=index, block_tokens=self._stream.block_tokens, vocab_size=model.vocab_size
        )
        request = GenerateRequest(
            request_id=str(index),
            model=model.model,
            prompt_token_ids=prompt,
            sampling=SamplingParams(max_tokens=output_tokens, temperature=0.0),
            slo=model.slo,
        )
        ask = Ask(
            request_id=request.request_id,
            model=model.model,
            prompt_tokens=len(prompt),
            max_tokens=output_tokens,
            slo=model.slo,
            deadline_s=now_s + self._limits.hold_s,
            prefix=prefix_names(model.model, prompt),
        )
        reception = Reception(
            admitted=lambda choice, stay: self._enter(request, record.arrival_s, choice, stay),
            refused=lambda _: self._refuse(model.model),
        )
        gateway.offer(ask, reception)

    def _refuse(self, model: str) -> None:
        self._waiting -= 1
        self.statistics[model].rejected += 1

    def _enter(self, request: GenerateRequest, arrival_s: float, choice: UnitChoice, stay: Stay) -> None:
        self._waiting -= 1
        self._open[request.request_id] = _Open(
            model=request.model,
            arrival_s=arrival_s,
            prompt_tokens=len(request.prompt_token_ids),
            stay=stay,
        )
        self._of_id[choice.unit_id].submit(request)

    # ---- tokens ----

    def _on_tokens(self, events: Sequence[TokenEvent]) -> None:
        now_s = self.agenda.clock.now_s
        for event in events:
            request = self._open[event.request_id]
            if event.tokens:
                request.stay.on_tokens(len(event.tokens))
                if request.first_s is None:
                    request.first_s = now_s
                else:
                    request.gaps_s.append(now_s - request.last_s)
                request.last_s = now_s
                request.output_tokens += len(event.tokens)
            if event.finish is not None:
                del self._open[event.request_id]
                self._end(request, event.finish)

    def _end(self, request: _Open, finish: FinishReason) -> None:
        request.stay.end(finished=finish in (FinishReason.LENGTH, FinishReason.STOP))
        self._last_end_s = self.agenda.clock.now_s
        statistics = self.statistics[request.model]
        if finish not in (FinishReason.LENGTH, FinishReason.STOP) or request.first_s is None:
            statistics.failed += 1
            return
        statistics.finish(
            ttft_s=request.first_s - request.arrival_s,
            gaps_s=request.gaps_s,
            e2e_s=request.last_s - request.arrival_s,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
        )

    # ---- what the gateways know ----

    def _publish_view(self) -> None:
        """Heartbeats of all units to which something happened, and a view of them for every gateway."""
        now_s = self.agenda.clock.now_s
        for unit in self._units:
            if unit.is_stale:
                unit.is_stale = False
                self._reports[unit.identity.unit_id] = UnitView(report=report_of(unit), age_s=0.0)
                if self._sample_partitions:
                    self._partitions.append(_partition_of(unit, self._reports[unit.identity.unit_id], now_s))
        view = FleetView(
            models=tuple(_card(model) for model in self._models.values()),
            units=tuple(self._reports[unit.identity.unit_id] for unit in self._units),
            stream_token="",
            num_gateways=len(self._gateways),
        )
        for gateway in self._gateways:
            gateway.on_view(view)
        assert self._arrivals_left or not (self._open or self._waiting) or self.agenda.has_more, (
            "requests are open and no unit works"
        )
        self.agenda.at(now_s + VIEW_PERIOD_S, self._publish_view)


def _card(model: FleetModel) -> ModelCard:
    return ModelCard(model=model.model, source="", revision=None, slo=model.slo, created_s=0)


def _partition_of(unit: SimulatedUnit, view: UnitView, now_s: float) -> PartitionSample:
    load = view.report.load
    assert load is not None
    used = load.total_blocks - load.free_blocks - load.cached_blocks
    return PartitionSample(
        time_s=now_s,
        unit_id=unit.identity.unit_id,
        prefill_sms=load.prefill_sms,
        decode_sms=load.decode_sms,
        used_share=used / max(1, load.total_blocks),
    )
