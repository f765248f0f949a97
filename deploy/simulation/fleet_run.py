"""A whole fleet in virtual time: arrivals, gateways, units and heartbeats on one heap of events."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, pairwise

from deploy.inspection.workload import cut_to_context
from deploy.simulation.coming_requests import ComingRequests, OpenRequest, rejected, simulated_prompt
from deploy.simulation.engine import OnTokens
from deploy.simulation.event_queue import EventQueue
from deploy.simulation.fleet_outcome import FleetOutcome, PartitionSample
from deploy.simulation.gateway import Reception, SimulatedGateway, Stay
from deploy.simulation.leased_unit import LeasedUnit
from deploy.simulation.statistics import ModelStatistics
from deploy.simulation.streams import RequestStream
from deploy.simulation.units import MuxedUnit, SimulatedUnit
from deploy.simulation.view_updates import FixedPlan, FleetModel, MakeViewUpdates
from pdmux_actor.executor.simulated import made_up_output
from pdmux_actor.lease import UnitReport
from pdmux_actor.messages import FinishReason, GenerateRequest, LoadReport, SamplingParams, TokenEvent
from pdmux_actor.scheduling.plain_batch import StretchTokens
from router.limits import GatewayLimits
from router.request_terms import AdmissionRequest, left_of
from router.routing.prefix_index import prefix_names
from router.routing.routing import UnitChoice
from traces.outcome import Ending, RequestOutcome
from traces.record import TraceRecord
from traces.timeliness import SloTarget

VIEW_PERIOD_S = 0.5  # units tell of themselves as often, and gateways hear of it at once
_PROGRESS_EVENTS = 2048
_IDLE_VIEWS = 2  # after so many, another tells gateways nothing new: the second compares with the first

BuildUnits = Callable[[EventQueue, OnTokens], Sequence[SimulatedUnit]]


class FleetRun:
    """One run over one stream. `give_up` is asked now and then, with the run, whether to stop early.
    `on_outcome` hears of every request. Those for models that are not among `models` are other parts' of the fleet
    (divided_run.py): they take a number and a gateway's turn here, and no more.
    """

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
        view_updates: MakeViewUpdates = FixedPlan,
        on_outcome: Callable[[RequestOutcome], None] | None = None,
        run_ahead: bool = True,
    ) -> None:
        self.agenda = EventQueue()
        self._num_views = 0  # that were events: the first was there before
        self._idle_views = 0  # one after the other, up to the last
        self.statistics = {m.model: ModelStatistics(SloTarget(ttft_s=m.slo.ttft_s, tbt_s=m.slo.tbt_s)) for m in models}
        self._models = {m.model: m for m in models}
        self._stream = stream
        self._gateways = [
            SimulatedGateway(name=f"gateway-{i}", limits=limits, agenda=self.agenda) for i in range(gateways)
        ]
        self._next_gateway = cycle(self._gateways)
        self._open: dict[str, OpenRequest] = {}
        self._units = list(build_units(self.agenda, self._on_tokens))
        self._of_id = {u.identity.unit_id: u for u in self._units}
        self._limits = limits
        self._view_updates = view_updates(models, self._units)
        self._homeless: list[OpenRequest] = []
        self._waiting_since_s: dict[str, float] = {}  # of requests that are not on a unit yet, by id
        self._loads: dict[str, LoadReport | None] = {}
        self._in_turns: frozenset[str] = frozenset()  # models that share places, as gateways were told last
        self._coming = ComingRequests(stream.records())
        self._last_end_s = 0.0
        self._sample_partitions = sample_partitions
        self._partitions: list[PartitionSample] = []
        self._window_s = float("inf") if window_s is None else window_s
        self._give_up = give_up
        self._gave_up = False
        self._arrivals_left = True
        self._on_progress = on_progress
        self._on_outcome = on_outcome
        for unit in self._units if run_ahead else ():
            if isinstance(unit, MuxedUnit | LeasedUnit):  # others hand requests on
                unit.let_run_ahead(self._quiet_until_s, self._on_stretch)

    @property
    def expected_requests(self) -> int:
        return self._stream.count

    def overdue_requests(self, limit_s: float | None = None) -> int:
        """Requests under way whose first token is later than `limit_s`, or than its own target."""
        now_s = self.agenda.clock.now_s
        on_units = sum(
            (request.first_s or now_s) - request.arrival_s > (limit_s or request.request.slo.ttft_s)
            for request in self._open.values()
        )
        longest_s = limit_s or max(m.slo.ttft_s for m in self._models.values())
        return on_units + sum(now_s - since_s > longest_s for since_s in self._waiting_since_s.values())

    def run(self) -> FleetOutcome:
        self._publish_view()
        self._await_next_arrival()
        next_look = _PROGRESS_EVENTS
        while (self._arrivals_left or self._open or self._waiting_since_s) and self.agenda.clock.now_s < self._window_s:
            if not self.agenda.step():
                break
            if self.agenda.num_done >= next_look:
                next_look = self.agenda.num_done + _PROGRESS_EVENTS
                self._tell_progress()
                if self._give_up is not None and self._give_up(self):
                    self._gave_up = True
                    break
        self._tell_progress()
        return self._outcome()

    def outcome_so_far(self) -> FleetOutcome:
        """Returns what a run that is not gone on with has found, as if only those requests had come that have ended."""
        self._gave_up = True
        for statistics in self.statistics.values():
            statistics.requests = statistics.finished + statistics.rejected + statistics.failed
        return self._outcome()

    def _outcome(self) -> FleetOutcome:
        return FleetOutcome(
            models=self.statistics,
            duration_s=self.agenda.clock.now_s if self._gave_up or self._open else self._last_end_s,
            ended_s=self.agenda.clock.now_s,
            events=self.agenda.num_done,
            views=self._num_views,
            steps=sum(u.load_report().steps_total for u in self._units),
            gave_up=self._gave_up,
            partitions=tuple(self._partitions),
            decisions=self._view_updates.decisions(self.agenda.clock.now_s),
            node_use=self._view_updates.node_use(self.agenda.clock.now_s),
        )

    def _tell_progress(self) -> None:
        if self._on_progress is not None:
            ended = sum(s.finished + s.rejected + s.failed for s in self.statistics.values())
            self._on_progress(ended, self.agenda.clock.now_s)

    # ---- arrivals ----

    def _await_next_arrival(self) -> None:
        following = self._coming.first()
        if following is None:
            self._arrivals_left = False
            return
        index, record = following
        self.agenda.arrival_at(record.arrival_s, lambda: self._arrive(index, record))

    def _arrive(self, index: int, record: TraceRecord) -> None:
        now_s = self.agenda.clock.now_s
        assert record.model is not None
        self._coming.take_first()
        gateway = next(self._next_gateway)
        statistics = self.statistics.get(record.model)
        if statistics is not None:
            statistics.requests += 1
            self._waiting_since_s[str(index)] = now_s
            self._ask(index, record, gateway, now_s)
        self._await_next_arrival()

    def _ask(self, index: int, record: TraceRecord, gateway: SimulatedGateway, now_s: float) -> None:
        assert record.model is not None
        model = self._models[record.model]
        longest_tokens = self._view_updates.longest_tokens(model.model)
        if longest_tokens is None:
            self._refuse(index, record)  # no unit will come within the patience of a client
            return
        fitting = cut_to_context(record, longest_tokens)
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
        ask = AdmissionRequest(
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
            refused=lambda _: self._refuse(index, record),
        )
        gateway.offer(ask, reception)

    def _refuse(self, index: int, record: TraceRecord) -> None:
        assert record.model is not None
        del self._waiting_since_s[str(index)]
        self.statistics[record.model].rejected += 1
        self._last_end_s = now_s = self.agenda.clock.now_s
        if self._on_outcome is not None:
            self._on_outcome(rejected(index, record, now_s))

    def _enter(self, request: GenerateRequest, arrival_s: float, choice: UnitChoice, stay: Stay) -> None:
        del self._waiting_since_s[request.request_id]
        opened = OpenRequest(request=request, arrival_s=arrival_s, stay=stay, unit_id=choice.unit_id)
        self._open[request.request_id] = opened
        left = left_of(request.slo, self.agenda.clock.now_s - arrival_s)
        if not self._of_id[choice.unit_id].submit(replace(request, slo=left)):
            self._go_on(opened)

    # ---- tokens ----

    def _on_tokens(self, events: Sequence[TokenEvent]) -> None:
        now_s = self.agenda.clock.now_s
        for event in events:
            opened = self._open[event.request_id]
            num_tokens = len(event.tokens)
            if num_tokens:
                opened.stay.on_tokens(num_tokens, now_s)
                if opened.first_s is None:
                    opened.first_s = now_s
                else:
                    opened.gaps_s.append(now_s - opened.last_s)
                opened.last_s = now_s
                opened.output_tokens += num_tokens
            if event.finish is not None:
                self._let_go(opened, event.finish, now_s)

    def _quiet_until_s(self, models: Collection[str]) -> float:
        """Returns until when a unit of these models is told nothing but by its own launches, and nobody asks what it
        has produced: gateways count that by model. Requests that wait there may go to any of their units when another
        one has room. One that another unit gives back comes with a view, or as its own arrival does, or when that unit
        has waited long enough for it: never with a launch that ends.
        """
        if any(gateway.holds_any(models) for gateway in self._gateways):
            return float("-inf")
        return self._coming.next_s(models, min(self.agenda.next_of_all_s, self._window_s))

    def _on_stretch(self, tokens: StretchTokens) -> None:
        """Does what `_on_tokens` does at each time, for tokens that are neither first nor last."""
        times_s, num_tokens = tokens.times_s, sum(tokens.counts)
        first_s, last_s = times_s[0], times_s[-1]
        gaps_s = [later_s - time_s for time_s, later_s in pairwise(times_s)]
        for request_id in tokens.request_ids:
            opened = self._open[request_id]
            opened.stay.on_tokens(num_tokens, last_s)
            opened.gaps_s.append(first_s - opened.last_s)
            opened.gaps_s += gaps_s
            opened.last_s = last_s
            opened.output_tokens += num_tokens

    def _let_go(self, opened: OpenRequest, finish: FinishReason, now_s: float) -> None:
        may_go_on = self._view_updates.moves_models and self._is_given_back(opened, finish)
        if may_go_on:
            opened.note_loss(died=self._view_updates.has_died(opened.unit_id))
            may_go_on = opened.losses.may_go_on(self._limits)
        if may_go_on:
            self.agenda.at(now_s, partial(self._go_on, opened))
        else:
            del self._open[opened.request.request_id]
            self._end(opened, finish)

    def _is_given_back(self, opened: OpenRequest, finish: FinishReason) -> bool:
        """The unit let go of the model, or lowered its quota."""
        if finish is FinishReason.ERROR:
            return not self._view_updates.has(opened.unit_id, opened.request.model)
        return finish is FinishReason.ABORT

    def _go_on(self, opened: OpenRequest) -> None:
        """On another unit, with the tokens that the client has; the next view may bring one."""
        now_s = self.agenda.clock.now_s
        since_s = opened.homeless_since_s if opened.homeless_since_s is not None else now_s
        # The unit that let it go may be the only one that its model comes back to.
        choice = opened.stay.go_on(now_s, avoid={opened.unit_id} if now_s < since_s + self._limits.avoid_s else set())
        vocab_size = self._models[opened.request.model].vocab_size
        told = made_up_output(opened.request.prompt_token_ids[0], opened.output_tokens, vocab_size)
        rest = replace(opened.request, output_token_ids=told)
        if choice is not None and self._of_id[choice.unit_id].submit(rest):
            opened.unit_id, opened.homeless_since_s = choice.unit_id, None
            opened.tokens_before = opened.output_tokens
        elif now_s - since_s >= self._patience_s(opened):
            del self._open[opened.request.request_id]
            self._end(opened, FinishReason.ERROR)
        else:
            opened.homeless_since_s = since_s
            self._homeless.append(opened)

    def _patience_s(self, opened: OpenRequest) -> float:
        may_wait = opened.output_tokens > 0 and opened.request.model in self._in_turns
        return self._limits.begun_hold_s if may_wait else self._limits.hold_s

    def _end(self, opened: OpenRequest, finish: FinishReason) -> None:
        finished = finish in (FinishReason.LENGTH, FinishReason.STOP)
        self._last_end_s = now_s = self.agenda.clock.now_s
        opened.stay.end(now_s, finished=finished, ttft_met=opened.ttft_met, tbt_met=opened.tbt_met)
        statistics = self.statistics[opened.request.model]
        finished = finished and opened.first_s is not None
        if self._on_outcome is not None:
            self._on_outcome(opened.outcome(Ending.FINISHED if finished else Ending.FAILED, self._last_end_s))
        if not finished or opened.first_s is None:
            statistics.failed += 1
            return
        statistics.finish(
            ttft_s=opened.first_s - opened.arrival_s,
            gaps_s=opened.gaps_s,
            e2e_s=opened.last_s - opened.arrival_s,
            prompt_tokens=len(opened.request.prompt_token_ids),
            output_tokens=opened.output_tokens,
        )

    # ---- what the gateways know ----

    def _publish_view(self) -> None:
        now_s = self.agenda.clock.now_s
        view = self._view_updates.view(self._gateways, now_s)
        for unit in view.units if self._sample_partitions else ():
            if self._loads.get(unit.report.unit_id) is not unit.report.load:
                self._loads[unit.report.unit_id] = unit.report.load
                self._partitions.append(_partition_of(unit.report, now_s))
        for gateway in self._gateways:
            gateway.on_view(view)
        if self._view_updates.moves_models:
            self._in_turns = frozenset(card.model for card in view.models if card.has_turns)
        homeless, self._homeless = self._homeless, []
        for opened in homeless:
            self._go_on(opened)
        is_over = not (self._open or self._waiting_since_s)
        assert self._arrivals_left or is_over or self._homeless or self.agenda.has_more, (
            "requests are open and no unit works"
        )
        self._idle_views = self._idle_views + 1 if is_over else 0
        if self._idle_views >= _IDLE_VIEWS and not self._view_updates.moves_models:
            now_s += self._skip_views(now_s) * VIEW_PERIOD_S
        self.agenda.at(now_s + VIEW_PERIOD_S, self._publish_next_view)

    def _skip_views(self, now_s: float) -> int:
        """Returns how many views would tell nothing, and counts them as events all the same: nobody waits or is served
        until the next request comes, and one more view is told before that.
        """
        following = self._coming.first()
        if following is None:
            return 0
        until_s = min(following[1].arrival_s, self._window_s)
        skipped = max(0, math.ceil((until_s - now_s) / VIEW_PERIOD_S) - 2)
        self._num_views += skipped
        self.agenda.num_done += skipped
        return skipped

    def _publish_next_view(self) -> None:
        self._num_views += 1
        self._publish_view()


def _partition_of(report: UnitReport, now_s: float) -> PartitionSample:
    load = report.load
    assert load is not None
    used = load.total_blocks - load.free_blocks - load.cached_blocks
    return PartitionSample(
        time_s=now_s,
        unit_id=report.unit_id,
        prefill_sms=load.prefill_sms,
        decode_sms=load.decode_sms,
        used_share=used / max(1, load.total_blocks),
    )
