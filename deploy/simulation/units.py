"""Defines what the router of a simulated fleet sees as units. Those of several engines are in fleet_modes/."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from deploy.simulation.engine import EngineDesign, OnStretch, OnTokens, SimulatedEngine
from deploy.simulation.event_queue import EventQueue
from pdmux_actor.lease import ModelPhase, ModelStatus, UnitReport
from pdmux_actor.messages import GenerateRequest, LoadReport, TokenEvent
from pdmux_actor.model_info import longest_sequence_tokens
from pdmux_actor.scheduling.plain_batch import StretchTokens

QuietUntil = Callable[[Collection[str]], float]
"""Returns until when nothing comes to a unit of these models, and nobody asks what it has produced."""


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

    def let_run_ahead(self, quiet_until_s: QuietUntil, on_stretch: OnStretch) -> None:
        """Does what `SimulatedEngine.let_run_ahead` does."""
        models = tuple(placed.info.model for placed in self.design.models)
        self._engine.let_run_ahead(partial(quiet_until_s, models), partial(pass_stretch_on, self, on_stretch))

    def submit(self, request: GenerateRequest) -> bool:
        self.is_stale = True
        self._engine.submit(request)
        return True

    def load_report(self) -> LoadReport:
        return self._engine.load_for_gateways()

    def _pass_on(self, events: Sequence[TokenEvent]) -> None:
        self.is_stale = True
        self._on_tokens(events)


def pass_stretch_on(unit: SimulatedUnit, on_stretch: OnStretch, tokens: StretchTokens) -> None:
    """Passes on what a unit that ran ahead has brought."""
    unit.is_stale = True
    on_stretch(tokens)


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


def ready_models(design: EngineDesign) -> tuple[ModelStatus, ...]:
    """Returns what a unit tells of models that it is built with."""
    return tuple(
        ModelStatus(
            model=m.info.model,
            phase=ModelPhase.READY,
            max_model_len=longest_sequence_tokens(m.info, m.quota_blocks),
        )
        for m in design.models
    )


def report_of(unit: SimulatedUnit, models: tuple[ModelStatus, ...]) -> UnitReport:
    """The heartbeat that the unit would send now."""
    return heartbeat(unit.identity, unit.design, lease_version=1, models=models, load=unit.load_report())
