"""Ways to run one fleet file: the product's, and the fleet baselines of the papers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from deploy.planning import PlannedFleet, plan_fleet
from deploy.settings import FleetFile, PoolSection
from deploy.simulation.agenda import Agenda
from deploy.simulation.chunk_budget import tuned_chunk_budget
from deploy.simulation.decode_only import DecodeOnlyLatency
from deploy.simulation.engine import EngineDesign, OnTokens, PlacedModel
from deploy.simulation.fleet_run import BuildUnits, FleetModel
from deploy.simulation.hardware import UnitHardware, hardware_of
from deploy.simulation.units import DisaggregatedUnit, MuxedUnit, SimulatedUnit, UnitIdentity
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.messages import Slo
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.settings import SchedulerSettings
from placement.plan import UnitCapacity
from placement.solvers.base import PlacementModel

# Of a pair of engines in one node: what NVLink of A100 reaches in one direction.
LINK_BYTES_PER_S = 250e9
_LOG_ENTRIES = 128  # nobody reads a simulated unit's decisions; its reports need the last moments
_UNBOUNDED_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """`solver` None is the fleet file's own."""

    name: str
    policy: str
    solver: str | None = None
    disaggregated: bool = False


BASELINES: Mapping[str, Deployment] = MappingProxyType(
    {
        d.name: d
        for d in (
            Deployment(name="temporal", policy="temporal"),
            Deployment(name="disaggregated", policy="prefill_first", disaggregated=True),
        )
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedFleet:
    """`build` makes fresh units for one run. `unplaced` maps models to the reason why no unit takes them."""

    deployment: Deployment
    models: tuple[FleetModel, ...]
    build: BuildUnits
    num_units: int
    num_gpus: int
    unplaced: Mapping[str, str]


def deploy_fleet(fleet: FleetFile, deployment: Deployment) -> DeployedFleet:
    """Raises SourceNotFound and UnsupportedModel, as `plan_fleet`."""
    if deployment.disaggregated:
        fleet = fleet.model_copy(update={"pools": tuple(_halved(p) for p in fleet.pools)})
    if deployment.solver is not None:
        placement = fleet.placement.model_copy(update={"solver": deployment.solver})
        fleet = fleet.model_copy(update={"placement": placement})
    planned = plan_fleet(fleet)
    hardware = {pool.name: hardware_of(pool) for pool in fleet.pools}
    slos = {m.id: Slo(ttft_s=m.slo.ttft_s, tbt_s=m.slo.tbt_s) for m in fleet.models}
    return DeployedFleet(
        deployment=deployment,
        models=tuple(
            FleetModel(model=m.model, slo=slos[m.model], vocab_size=m.spec.vocab_size) for m in planned.models
        ),
        build=_builder(fleet, planned, deployment, hardware),
        num_units=len(planned.units),
        num_gpus=sum(u.num_gpus for u in planned.units) * (2 if deployment.disaggregated else 1),
        unplaced=planned.plan.unplaced,
    )


def _halved(pool: PoolSection) -> PoolSection:
    """Half of a unit's GPUs for each phase, or pairs of units that have one each. Weights are held twice."""
    engine_gpus = max(1, pool.mesh_gpus // 2)
    changes: dict[str, object] = {"mesh_gpus": engine_gpus, "gpus_per_node": max(1, pool.gpus_per_node // 2)}
    memory_bytes = _memory_bytes(pool)
    if pool.mesh_gpus > 1 and memory_bytes is not None:
        beside_kv = memory_bytes - pool.kv_memory
        changes["device_memory"] = memory_bytes // 2
        changes["kv_memory"] = max(0, memory_bytes // 2 - beside_kv)
    return pool.model_copy(update=changes)


def _memory_bytes(pool: PoolSection) -> int | None:
    if pool.device_memory is not None:
        return int(pool.device_memory)
    return None if pool.gpu_type is None else hardware_of(pool).device.memory_bytes * pool.mesh_gpus


def _builder(
    fleet: FleetFile, planned: PlannedFleet, deployment: Deployment, hardware: Mapping[str, UnitHardware]
) -> BuildUnits:
    models = {m.model: m for m in planned.models}
    slos = {m.id: m.slo.tbt_s for m in fleet.models}
    settings = SchedulerSettings(
        max_batch_tokens=fleet.engine.max_batch_tokens,
        max_running_sequences=fleet.engine.max_running_sequences,
        decision_log_entries=_LOG_ENTRIES,
    )

    def build(agenda: Agenda, on_tokens: OnTokens) -> Sequence[SimulatedUnit]:
        units: list[SimulatedUnit] = []
        for capacity in planned.units:
            pool = capacity.unit_id.rpartition("/")[0]
            placed = tuple(
                PlacedModel(info=model_info(models[p.model], capacity.block_bytes), quota_blocks=p.quota_blocks)
                for p in planned.plan.models_of(capacity.unit_id)
            )
            tightest_tbt_s = min((slos[m.info.model] for m in placed), default=float("inf"))
            design = _design(deployment.policy, settings, capacity, placed, hardware[pool], tightest_tbt_s)
            identity = UnitIdentity(
                unit_id=capacity.unit_id,
                pool=pool,
                num_gpus=capacity.num_gpus * (2 if deployment.disaggregated else 1),
                memory_bytes=capacity.memory_bytes,
            )
            units.append(
                _pair(identity, design, agenda, on_tokens)
                if deployment.disaggregated
                else MuxedUnit(identity, design, agenda, on_tokens)
            )
        return units

    return build


def _design(
    policy: str,
    settings: SchedulerSettings,
    capacity: UnitCapacity,
    placed: tuple[PlacedModel, ...],
    hardware: UnitHardware,
    tightest_tbt_s: float,
) -> EngineDesign:
    specs = [m.info.spec for m in placed]
    budget = tuned_chunk_budget(hardware.latency, specs, hardware.device, tightest_tbt_s, host_s=hardware.host_s)
    return EngineDesign(
        device=hardware.device,
        latency=hardware.latency,
        block_bytes=capacity.block_bytes,
        total_blocks=capacity.total_blocks,
        policy=policy,
        settings=_with_budget(settings, budget),
        models=placed,
        host_s=hardware.host_s,
    )


def _with_budget(settings: SchedulerSettings, chunk_budget_tokens: int) -> SchedulerSettings:
    return replace(settings, chunk_budget_tokens=chunk_budget_tokens)


def _pair(identity: UnitIdentity, design: EngineDesign, agenda: Agenda, on_tokens: OnTokens) -> DisaggregatedUnit:
    decode = replace(
        design,
        policy="chunked_prefill",
        latency=DecodeOnlyLatency(design.latency),
        settings=_with_budget(design.settings, _UNBOUNDED_TOKENS),
    )
    return DisaggregatedUnit(identity, design, decode, agenda, on_tokens, link_bytes_per_s=LINK_BYTES_PER_S)


def model_info(model: PlacementModel, block_bytes: int) -> ModelInfo:
    return ModelInfo(
        model=model.model,
        spec=model.spec,
        geometry=KvGeometry.of(model.spec, block_bytes),
        eos_token_ids=frozenset(),
        max_model_len=model.max_model_len,
    )
