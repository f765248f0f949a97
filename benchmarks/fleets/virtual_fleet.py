"""One or more units in virtual time, with or without a gateway before them: the product's own deciding.

What a run needs of an engine, it takes from `deploy/simulation`: nothing here decides anything.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from load.request_times import RequestTimes

from deploy.simulation.engine import EngineDesign, PlacedModel
from deploy.simulation.event_queue import EventQueue
from deploy.simulation.gateway import Reception, SimulatedGateway, Stay
from deploy.simulation.units import MuxedUnit, UnitIdentity, ready_models, report_of
from pdmux_actor.executor.simulated import GPU_HOST_S
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.messages import FinishReason, GenerateRequest, SamplingParams, Slo, TokenEvent
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.gpus.h200 import DEVICE as H200
from profiler.latency import LatencyModel
from profiler.roofline import RooflineLatency
from profiler.specs import DeviceSpec, ModelSpec
from router.limits import GatewayLimits
from router.request_terms import AdmissionRequest, left_of
from router.routing.prefix_index import prefix_names
from router.routing.routing import UnitChoice
from router.view import FleetView, ModelCard, UnitView

_VIEW_PERIOD_S = 0.5
_CHECK_PERIOD_S = 0.5


def unit_design(
    models: Mapping[str, ModelSpec],
    *,
    policy: str,
    settings: SchedulerSettings,
    max_model_len: int,
    total_blocks: int,
    block_bytes: int,
    device: DeviceSpec = H200,
    latency: LatencyModel | None = None,
    host_s: float = GPU_HOST_S,
) -> EngineDesign:
    """Models with equal quotas on one GPU, by the roofline where no latency is given."""
    placed = [
        PlacedModel(
            info=ModelInfo(
                model=model,
                spec=spec,
                geometry=KvGeometry.of(spec, block_bytes),
                eos_token_ids=frozenset(),
                max_model_len=max_model_len,
            ),
            quota_blocks=total_blocks // len(models),
        )
        for model, spec in models.items()
    ]
    return EngineDesign(
        device=device,
        latency=latency or RooflineLatency(device),
        block_bytes=block_bytes,
        total_blocks=total_blocks,
        policy=policy,
        settings=settings,
        models=tuple(placed),
        host_s=host_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """A request that is still to be sent. Its prompt is made when it is: a trace of long ones would fill the memory."""

    at_s: float
    model: str
    prompt: Callable[[], tuple[int, ...]]
    output_tokens: int
    slo: Slo
    tenant: str = ""
    kind: str = ""  # of the workload's, for figures by kind


@dataclass(slots=True, eq=False)
class Sent:
    """What became of a request; `admitted_s` is when the gateway passed it on."""

    coming: Coming
    times: RequestTimes
    stay: Stay | None = None
    admitted_s: float | None = None
    refused: bool = False
    is_late: bool = field(default=False, init=False)

    @property
    def is_in_time(self) -> bool:
        return not self.is_late and self.times.is_in_time

    def note(self, num_tokens: int, now_s: float) -> None:
        self.is_late = self.is_late or self.times.is_late(now_s)
        self.times.token_times_s += [now_s] * num_tokens

    def is_settled(self, now_s: float) -> bool:
        """Whether it is known to be in time or not."""
        return self.refused or self.is_late or self.times.finish is not None or self.times.is_late(now_s)


class VirtualFleet:
    """Units of one design from empty to the end of a run. Without `limits` there is one unit and no gateway."""

    def __init__(
        self, design: EngineDesign, slo: Slo, *, limits: GatewayLimits | None = None, num_units: int = 1
    ) -> None:
        """`slo` is the models' own target, as the gateway knows it."""
        assert limits is not None or num_units == 1
        self.agenda = EventQueue()
        self.sent: dict[str, Sent] = {}
        self._num_sent = 0
        identities = [
            UnitIdentity(unit_id=f"u{i}", pool="p", num_gpus=1, memory_bytes=design.device.memory_bytes)
            for i in range(num_units)
        ]
        self.units = {i.unit_id: MuxedUnit(i, design, self.agenda, self._on_tokens) for i in identities}
        self._cards = tuple(
            ModelCard(model=m.info.model, source="", revision=None, slo=slo, created_s=0) for m in design.models
        )
        self._limits = limits
        self._gateway: SimulatedGateway | None = None
        if limits is not None:
            self._gateway = SimulatedGateway(name="gateway", limits=limits, agenda=self.agenda)
            self._publish(self._gateway)

    def send(self, coming: Iterable[Coming]) -> None:
        """Each at its time. May be called again, with later ones."""
        for one in coming:
            self._await(str(self._num_sent), one)
            self._num_sent += 1

    def advance(self, until_s: float) -> None:
        while self.agenda.clock.now_s < until_s and self.agenda.step():
            pass

    def settle(self) -> None:
        """Goes on until every request is known to be in time or not."""
        while not self._is_settled():
            self.advance(self.agenda.clock.now_s + _CHECK_PERIOD_S)

    def _is_settled(self) -> bool:
        now_s = self.agenda.clock.now_s
        all_sent = len(self.sent) == self._num_sent
        return all_sent and (not self.agenda.has_more or all(s.is_settled(now_s) for s in self.sent.values()))

    def _await(self, request_id: str, coming: Coming) -> None:
        self.agenda.at(coming.at_s, lambda: self._arrive(request_id, coming))

    def _arrive(self, request_id: str, coming: Coming) -> None:
        now_s = self.agenda.clock.now_s
        request = GenerateRequest(
            request_id=request_id,
            model=coming.model,
            prompt_token_ids=coming.prompt(),
            sampling=SamplingParams(max_tokens=coming.output_tokens, temperature=0.0),
            slo=coming.slo,
        )
        times = RequestTimes(coming.model, coming.slo, now_s, coming.output_tokens)
        sent = self.sent[request_id] = Sent(coming, times)
        if self._gateway is None:
            sent.admitted_s = now_s
            self.units["u0"].submit(request)
        else:
            self._offer(self._gateway, sent, request, now_s)

    def _offer(self, gateway: SimulatedGateway, sent: Sent, request: GenerateRequest, now_s: float) -> None:
        assert self._limits is not None
        ask = AdmissionRequest(
            request_id=request.request_id,
            model=request.model,
            prompt_tokens=len(request.prompt_token_ids),
            max_tokens=request.sampling.max_tokens,
            slo=request.slo,
            deadline_s=now_s + self._limits.hold_s,
            tenant=sent.coming.tenant,
            prefix=prefix_names(request.model, request.prompt_token_ids),
        )

        def admitted(choice: UnitChoice, stay: Stay) -> None:
            sent.stay = stay
            sent.admitted_s = self.agenda.clock.now_s
            left = left_of(request.slo, sent.admitted_s - now_s)
            self.units[choice.unit_id].submit(replace(request, slo=left))

        def refused(_: object) -> None:
            sent.refused = True

        gateway.offer(ask, Reception(admitted=admitted, refused=refused))

    def _on_tokens(self, events: Sequence[TokenEvent]) -> None:
        now_s = self.agenda.clock.now_s
        for event in events:
            sent = self.sent[event.request_id]
            if event.tokens:
                sent.note(len(event.tokens), now_s)
                if sent.stay is not None:
                    sent.stay.on_tokens(len(event.tokens), now_s)
            if event.finish is not None:
                sent.times.finish = event.finish
                if sent.stay is not None:
                    sent.stay.end(now_s, finished=event.finish in (FinishReason.LENGTH, FinishReason.STOP))

    def _publish(self, gateway: SimulatedGateway) -> None:
        units = tuple(
            UnitView(report=report_of(unit, ready_models(unit.design)), age_s=0.0) for unit in self.units.values()
        )
        gateway.on_view(FleetView(models=self._cards, units=units, stream_token=""))
        self.agenda.at(self.agenda.clock.now_s + _VIEW_PERIOD_S, lambda: self._publish(gateway))
