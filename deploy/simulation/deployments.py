"""Ways to run one fleet file: the product's, and the fleet baselines of the papers."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from deploy.control.planner import PlannerInPlace
from deploy.errors import FleetFileError, OptionNotUsable
from deploy.fleet_file.model_specs import with_adapters_folded
from deploy.fleet_file.settings import FleetFile, PoolSection
from deploy.planning.fleet_planning import PlannedFleet, lay_out_fleet, plan_fleet, units_of_fleet
from deploy.planning.pool_hardware import UnitHardware, gpu_hardware, hardware_of, host_memory_of
from deploy.simulation.control import LoadTimes, MakePlanner, led_by_control_loop
from deploy.simulation.engine import EngineDesign, OnTokens, PlacedModel
from deploy.simulation.event_queue import EventQueue
from deploy.simulation.fleet_modes.registry import FLEET_MODES
from deploy.simulation.fleet_modes.split import Split, divided, split_named, split_remedy
from deploy.simulation.fleet_run import BuildUnits
from deploy.simulation.leased_unit import LeasedUnit, LoadableModel
from deploy.simulation.units import MuxedUnit, SimulatedUnit, UnitIdentity
from deploy.simulation.view_updates import FixedPlan, FleetModel, MakeViewUpdates
from deploy.simulation.virtual_world import Interference
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.messages import Slo
from pdmux_actor.model_info import ModelInfo
from placement.plan import UnitCapacity
from placement.problem import PlacementModel
from profiler.latency import ChunkShape, LatencyModel
from profiler.specs import DeviceSpec, ModelSpec

UnitDesign = tuple[UnitIdentity, EngineDesign]

_LOG_ENTRIES = 128  # nobody reads a simulated unit's decisions; its reports need the last moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """`solver` None is the fleet file's own; `lays_out`: it chooses the sizes of units, too. With a `fleet_mode` units
    are several engines, by its `split`. `scheduler` are fields of the scheduler's settings that differ, `host_s` what
    the engine's host adds to every launch (default: by the kind of device), `longest_prompt_tokens` what the budget of
    chunked prefill is tuned for. `slowdowns`: by unit, times what its device's figures say; `engine_slowdown`: the same
    of all units. `interference`: by model and the one that runs beside it, how much longer it takes then. `seed`: by it
    spot nodes are lost.
    """

    name: str
    policy: str
    solver: str | None = None
    lays_out: bool = False
    fleet_mode: str | None = None
    split: Split = field(default_factory=Split)
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    host_s: float | None = None
    longest_prompt_tokens: int = 0
    slowdowns: Mapping[str, float] = field(default_factory=dict)
    engine_slowdown: float = 1.0
    interference: Interference = field(default_factory=dict)
    seed: int = 0


BASELINES: Mapping[str, Deployment] = MappingProxyType(
    {
        d.name: d
        for d in (
            Deployment(name="temporal", policy="temporal"),
            Deployment(name="spatial", policy="chunked_prefill", solver="spatial"),
            Deployment(name="disaggregated", policy="prefill_first", fleet_mode="disaggregated"),
        )
    }
)


def baseline_named(name: str, fleet: FleetFile) -> Deployment:
    """Finds a baseline, or makes one of a name like 2P1D. Raises OptionNotUsable: there is none, or the fleet's units
    cannot be divided so.
    """
    split = split_named(name)
    if split is None:
        if name not in BASELINES:
            remedy = f"use one of {', '.join(BASELINES)}, or a split like 2P1D or 2P1D:50:layerwise (GB/s)"
            raise OptionNotUsable(option="--baseline", value=name, remedy=remedy)
        return BASELINES[name]
    for pool in fleet.pools:
        why_not = split_remedy(pool, split)
        if why_not is not None:
            raise OptionNotUsable(option="--baseline", value=name, remedy=why_not)
    return replace(BASELINES["disaggregated"], name=name, split=split)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedFleet:
    """`build` makes fresh units for one run. `unplaced` maps models to the reason why no unit takes them. `designs` are
    of units of one engine that keep their models; empty where there are others.
    """

    deployment: Deployment
    models: tuple[FleetModel, ...]
    build: BuildUnits
    num_units: int
    num_gpus: int
    unplaced: Mapping[str, str]
    view_updates: MakeViewUpdates = FixedPlan
    designs: Sequence[UnitDesign] = ()

    def part(self, models: Set[str]) -> "DeployedFleet":
        """Returns these models with their units, as a fleet of their own. No unit may have one of these and another."""
        designs = [d for d in self.designs if any(placed.info.model in models for placed in d[1].models)]
        return replace(
            self,
            models=tuple(m for m in self.models if m.model in models),
            build=_builder(designs, self.deployment),
            num_units=len(designs),
            num_gpus=sum(identity.num_gpus for identity, _ in designs),
            unplaced={model: why for model, why in self.unplaced.items() if model in models},
            designs=designs,
        )


def deploy_fleet(
    fleet: FleetFile,
    deployment: Deployment,
    *,
    loads: LoadTimes | None = None,
    make_planner: MakePlanner = PlannerInPlace,
) -> DeployedFleet:
    """Builds a simulated fleet. With `loads` the control loop moves models, as the file's `placement` section says, and
    asks what `make_planner` makes; else the plan stays. Adapters are their base: its memory, demand and targets.

    Raises SourceNotFound and UnsupportedModel, as `plan_fleet`.
    """
    assert loads is None or deployment.fleet_mode is None, "units of several engines are not led"
    for i, pool in enumerate(fleet.pools):
        if pool.role is not None:
            remedy = "units with roles are not simulated; remove it from all pools, and add --baseline 1P1D to compare"
            raise FleetFileError([f"pools[{i}].role = {pool.role}: {remedy}"])
    if deployment.solver is not None:
        placement = fleet.placement.model_copy(update={"solver": deployment.solver})
        fleet = fleet.model_copy(update={"placement": placement})
    planned = lay_out_fleet(fleet) if deployment.lays_out else plan_fleet(fleet)
    if deployment.fleet_mode is not None:
        pools = tuple(divided(p, planned, deployment.split) for p in fleet.pools)
        fleet = fleet.model_copy(update={"pools": pools})
        planned = plan_fleet(fleet)
    slos = {m.id: Slo(ttft_s=m.slo.ttft_s, tbt_s=m.slo.tbt_s) for m in with_adapters_folded(fleet.models)}
    models = tuple(FleetModel(model=m.model, slo=slos[m.model], vocab_size=m.spec.vocab_size) for m in planned.models)
    may_grow = loads is not None and not deployment.lays_out
    capacities = (*planned.units, *_units_to_come(fleet, planned)) if may_grow else planned.units
    hardware = {(u.pool, u.num_gpus): _hardware(fleet.pool(u.pool), u.num_gpus) for u in capacities}
    designs = [
        _unit_design(
            fleet,
            deployment,
            planned,
            capacity,
            hardware[capacity.pool, capacity.num_gpus],
            keeps_accounts=loads is not None,  # else nobody but gateways is told of a unit
        )
        for capacity in capacities
    ]
    return DeployedFleet(
        deployment=deployment,
        models=models,
        build=_builder(designs, deployment) if loads is None else _leased_builder(designs, planned, capacities, loads),
        num_units=len(planned.units),
        num_gpus=sum(identity.num_gpus for identity, _ in designs[: len(planned.units)]),
        unplaced={**planned.plan.unplaced, **(_asleep(planned) if loads is None else {})},
        view_updates=FixedPlan
        if loads is None
        else led_by_control_loop(
            fleet, planned, policy=deployment.policy, make_planner=make_planner, seed=deployment.seed
        ),
        designs=designs if loads is None and deployment.fleet_mode is None else (),
    )


def _asleep(planned: PlannedFleet) -> dict[str, str]:
    """Returns models that need no replica and have none, with what that means where the plan stays."""
    placed = {placement.model for unit in planned.plan.units for placement in unit.models}
    why = "the plan has no replica of it (replicas.min: 0), and only with --control-loop is it loaded when asked for"
    return {m.model: why for m in planned.models if m.model not in placed and m.model not in planned.plan.unplaced}


def _units_to_come(fleet: FleetFile, planned: PlannedFleet) -> tuple[UnitCapacity, ...]:
    """Units of the nodes that pools may grow by, each like the first of its pool."""
    like = {unit.pool: unit for unit in reversed(planned.units)}
    known = {unit.unit_id for unit in planned.units}
    largest = tuple(
        p.model_copy(update={"nodes": p.nodes.model_copy(update={"min": p.nodes.max or p.nodes.min})})
        for p in fleet.pools
    )
    return tuple(
        replace(like[unit.pool], unit_id=unit.unit_id, node=unit.node)
        for unit in units_of_fleet(fleet.model_copy(update={"pools": largest}))
        if unit.unit_id not in known
    )


def _hardware(pool: PoolSection, num_gpus: int) -> UnitHardware:
    """Of all units of that size: they share what the latency model remembers."""
    hardware = hardware_of(pool)
    if pool.gpu_type is not None and hardware.num_gpus != num_gpus:  # the solver has chosen another size of units
        return replace(gpu_hardware(hardware.device, num_gpus), host_s=hardware.host_s)
    return hardware


def _unit_design(
    fleet: FleetFile,
    deployment: Deployment,
    planned: PlannedFleet,
    capacity: UnitCapacity,
    hardware: UnitHardware,
    *,
    keeps_accounts: bool,
) -> UnitDesign:
    host_s = hardware.host_s if deployment.host_s is None else deployment.host_s
    models = {m.model: m for m in planned.models}
    placed = tuple(
        PlacedModel(info=model_info(models[p.model], capacity), quota_blocks=p.quota_blocks)
        for p in planned.plan.models_of(capacity.unit_id)
    )
    held = {m.info.model for m in placed}
    budget = tuned_chunk_budget(
        hardware.latency,
        [m.info.spec for m in placed],
        hardware.device,
        min((m.slo.tbt_s for m in fleet.models if held.intersection((m.id, m.base))), default=float("inf")),
        host_s=host_s,
        prompt_tokens=deployment.longest_prompt_tokens,
    )
    settings = replace(
        fleet.engine.scheduler_settings(fleet.pool(capacity.pool).device),
        chunk_budget_tokens=budget,
        decision_log_entries=_LOG_ENTRIES,
        keeps_accounts=keeps_accounts,
    )
    design = EngineDesign(
        device=hardware.device,
        latency=hardware.latency,
        block_bytes=capacity.block_bytes,
        total_blocks=capacity.total_blocks,
        policy=deployment.policy,
        settings=replace(settings, **deployment.scheduler),
        models=placed,
        host_s=host_s,
        slowdown=deployment.engine_slowdown * deployment.slowdowns.get(capacity.unit_id, 1.0),
        interference=deployment.interference,
    )
    identity = UnitIdentity(
        unit_id=capacity.unit_id,
        pool=capacity.pool,
        num_gpus=capacity.num_gpus * (1 if deployment.fleet_mode is None else deployment.split.engines),
        memory_bytes=capacity.memory_bytes,
        node=capacity.node,
        host_memory_bytes=host_memory_of(fleet.pool(capacity.pool), capacity.num_gpus),
    )
    return identity, design


def _builder(designs: Sequence[UnitDesign], deployment: Deployment) -> BuildUnits:
    def build(agenda: EventQueue, on_tokens: OnTokens) -> Sequence[SimulatedUnit]:
        if deployment.fleet_mode is None:
            return [MuxedUnit(identity, design, agenda, on_tokens) for identity, design in designs]
        make = FLEET_MODES[deployment.fleet_mode].make
        return [make(identity, design, deployment.split, agenda, on_tokens) for identity, design in designs]

    return build


def _leased_builder(
    designs: Sequence[UnitDesign],
    planned: PlannedFleet,
    capacities: Sequence[UnitCapacity],
    loads: LoadTimes,
) -> BuildUnits:
    alike: dict[tuple[DeviceSpec | None, int, int], Mapping[str, LoadableModel]] = {}
    loadable: dict[str, Mapping[str, LoadableModel]] = {}
    for c in capacities:
        kind = c.device, c.num_gpus, c.block_bytes
        if kind not in alike:
            alike[kind] = {m.model: _loadable(m, c, loads) for m in planned.models}
        loadable[c.unit_id] = alike[kind]

    def build(agenda: EventQueue, on_tokens: OnTokens) -> Sequence[SimulatedUnit]:
        return [LeasedUnit(i, design, loadable[i.unit_id], agenda, on_tokens) for i, design in designs]

    return build


def _loadable(model: PlacementModel, capacity: UnitCapacity, loads: LoadTimes) -> LoadableModel:
    assert capacity.device is not None, "a simulated unit's speed is known"
    return LoadableModel(
        info=model_info(model, capacity),
        load_s=loads.of(model.spec),
        wake_s=loads.of_wake(model.spec, capacity.device, capacity.num_gpus),
    )


def model_info(model: PlacementModel, unit: UnitCapacity) -> ModelInfo:
    """Describes a model to the scheduler. Where there are fewer KV heads than GPUs, each GPU holds one."""
    geometry = KvGeometry.of(model.spec, unit.block_bytes)
    heads = max(model.spec.num_kv_heads, unit.num_gpus)
    return ModelInfo(
        model=model.model,
        spec=model.spec,
        geometry=replace(geometry, blocks_per_row=model.spec.num_layers * heads),
        eos_token_ids=frozenset(),
        max_model_len=model.max_model_len,
    )


_BATCH, _CONTEXT_TOKENS = 32, 1024  # of the decode that the chunk rides on (MuxWise Fig. 6)
_BUDGETS_TOKENS = (8192, 6144, 4096, 3072, 2048, 1536, 1024, 768, 512, 384, 256, 192, 128)
_LEAST_TOKENS = 64


def tuned_chunk_budget(
    latency: LatencyModel,
    specs: Sequence[ModelSpec],
    device: DeviceSpec,
    tbt_s: float,
    *,
    host_s: float = 0.0,
    prompt_tokens: int = 0,
) -> int:
    """Tunes chunked prefill to the TBT target as Sarathi-Serve (arXiv:2403.02310) does: the largest budget whose fused
    step meets the target for every model of the unit, or else the least there is.

    `prompt_tokens` is the longest prompt that counts: its last chunk attends to all that came before.
    """
    contexts = [_CONTEXT_TOKENS] * _BATCH
    for budget in _BUDGETS_TOKENS:
        new_tokens = budget - _BATCH
        chunk = [ChunkShape(new_tokens, max(0, prompt_tokens - new_tokens))]
        if all(host_s + latency.mixed_s(spec, chunk, contexts, device.num_sms) <= tbt_s for spec in specs):
            return budget
    return _LEAST_TOKENS
