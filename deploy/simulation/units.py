"""Defines what the router of a simulated fleet sees as units: one engine, or a prefill and a decode engine (1P1D)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from deploy.simulation.engine import EngineDesign, OnTokens, SimulatedEngine
from deploy.simulation.event_queue import EventQueue
from pdmux_actor.lease import ModelPhase, ModelStatus, UnitReport
from pdmux_actor.messages import FinishReason, GenerateRequest, LoadReport, TokenEvent
from pdmux_actor.model_info import longest_sequence_tokens
from profiler.specs import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitIdentity:
    """`host_memory_bytes` are for the weights of models that sleep."""

    unit_id: str
    pool: str
    num_gpus: int
    memory_bytes: int
    node: str = "simulated"
    host_memory_bytes: int = 0


class SimulatedUnit(Protocol):
    identity: UnitIdentity
    design: EngineDesign
    is_stale: bool  # something has happened since the last report

    def submit(self, request: GenerateRequest) -> bool:
        """False: the unit does not have the model ready."""
        ...

    def load_report(self) -> LoadReport: ...


class MuxedUnit:
    """One engine for both phases."""

    def __init__(self, identity: UnitIdentity, design: EngineDesign, agenda: EventQueue, on_tokens: OnTokens) -> None:
        self.identity = identity
        self.design = design
        self.is_stale = True
        self._on_tokens = on_tokens
        self._engine = SimulatedEngine(design, agenda, self._pass_on)

    def submit(self, request: GenerateRequest) -> bool:
        self.is_stale = True
        self._engine.submit(request)
        return True

    def load_report(self) -> LoadReport:
        return self._engine.load_report()

    def _pass_on(self, events: Sequence[TokenEvent]) -> None:
        self.is_stale = True
        self._on_tokens(events)


class DisaggregatedUnit:
    """Prompts run on one engine up to the first token; their KV crosses the link, and the other engine decodes.

    Transfers do not wait for each other. The router counts the requests of both engines as the unit's.
    """

    def __init__(
        self,
        identity: UnitIdentity,
        prefill: EngineDesign,
        decode: EngineDesign,
        agenda: EventQueue,
        on_tokens: OnTokens,
        *,
        link_bytes_per_s: float,
    ) -> None:
        self.identity = identity
        self.design = decode
        self.is_stale = True
        self._agenda = agenda
        self._on_tokens = on_tokens
        self._link_bytes_per_s = link_bytes_per_s
        self._specs: Mapping[str, ModelSpec] = {m.info.model: m.info.spec for m in prefill.models}
        self._in_prefill: dict[str, GenerateRequest] = {}
        self._prefill = SimulatedEngine(prefill, agenda, self._hand_over)
        self._decode = SimulatedEngine(decode, agenda, self._pass_on)

    def submit(self, request: GenerateRequest) -> bool:
        self.is_stale = True
        self._in_prefill[request.request_id] = request
        self._prefill.submit(replace(request, sampling=replace(request.sampling, max_tokens=1)))
        return True

    def load_report(self) -> LoadReport:
        """The decode engine's, with the requests that are still in prefill counted as waiting."""
        before, after = self._prefill.load_report(), self._decode.load_report()
        ahead = {m.model: m.running + m.waiting for m in before.models}
        models = tuple(replace(m, waiting=m.waiting + ahead[m.model]) for m in after.models)
        return replace(after, models=models)

    def _hand_over(self, events: Sequence[TokenEvent]) -> None:
        """First tokens go to the client at once, the rest of a request after its KV has crossed the link."""
        self.is_stale = True
        passed_on = []
        for event in events:
            request = self._in_prefill.pop(event.request_id)
            goes_on = event.finish is FinishReason.LENGTH and request.sampling.max_tokens > 1
            passed_on.append(TokenEvent(request_id=event.request_id, tokens=event.tokens) if goes_on else event)
            if goes_on:
                first = tuple(token.token_id for token in event.tokens)
                kv_bytes = len(request.prompt_token_ids) * self._specs[request.model].kv_bytes_per_token
                rest = replace(request, output_token_ids=first)
                self._agenda.at(
                    self._agenda.clock.now_s + kv_bytes / self._link_bytes_per_s, _submission(self._decode, rest)
                )
        self._on_tokens(passed_on)

    def _pass_on(self, events: Sequence[TokenEvent]) -> None:
        self.is_stale = True
        self._on_tokens(events)


def _submission(engine: SimulatedEngine, request: GenerateRequest) -> Callable[[], None]:
    return lambda: engine.submit(request)


def heartbeat(
    identity: UnitIdentity,
    design: EngineDesign,
    *,
    lease_version: int,
    models: tuple[ModelStatus, ...],
    load: LoadReport | None,
) -> UnitReport:
    """Returns what a unit in virtual time tells of itself; its id is its endpoint."""
    return UnitReport(
        unit_id=identity.unit_id,
        node=identity.node,
        pool=identity.pool,
        num_gpus=identity.num_gpus,
        endpoint=identity.unit_id,
        memory_bytes=identity.memory_bytes,
        block_bytes=design.block_bytes,
        total_blocks=design.total_blocks,
        lease_version=lease_version,
        models=models,
        load=load,
        device=design.device.name,
        host_memory_bytes=identity.host_memory_bytes,
        launch_limits=design.settings.launch_limits(),
    )


def report_of(unit: SimulatedUnit) -> UnitReport:
    """The heartbeat that the unit would send now."""
    models = tuple(
        ModelStatus(
            model=m.info.model,
            phase=ModelPhase.READY,
            max_model_len=longest_sequence_tokens(m.info, m.quota_blocks),
        )
        for m in unit.design.models
    )
    return heartbeat(unit.identity, unit.design, lease_version=1, models=models, load=unit.load_report())
