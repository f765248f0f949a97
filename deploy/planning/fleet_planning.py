"""Plans worked out from the fleet file alone: what the control loop starts with, and what an operator asks about."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from deploy.errors import OptionNotUsable
from deploy.fleet_file.model_catalog import CatalogModel
from deploy.fleet_file.model_specs import adapters_of, bytes_of_adapters, read_model_spec, with_adapters_folded
from deploy.fleet_file.settings import FleetFile, PoolSection
from deploy.planning.pool_hardware import hardware_of
from deploy.planning.profiled_costs import profiled_costs, profiles_of
from pdmux_actor.executor.host_memory import host_memory_bytes
from placement.estimation.plan_estimate import FleetEstimate, estimate
from placement.estimation.problem_arrays import Estimator
from placement.estimation.refusal import fits_alone
from placement.estimation.served_bound import most_served, most_served_of_nodes
from placement.launch_limits import LaunchLimits
from placement.nodes import MESH_SIZES, NodePool
from placement.plan import Plan, UnitCapacity
from placement.pool_sizing import size_pools, with_pools_of
from placement.problem import FleetSolver, PlacementModel
from placement.solvers.entry import IsTimeUp, SolverEntry
from placement.solvers.registry import SOLVERS
from placement.solvers.search import SearchSolver
from placement.unit_role import UnitRole
from profiler.native_refusal import NativeDevice
from profiler.specs import ModelSpec

_ROOM_TO_SPARE = 1.25  # times the demand: what units keep that are said to be enough for it


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFleet:
    """`num_gpus`: of the fleet, in units or not."""

    plan: Plan
    models: tuple[PlacementModel, ...]
    units: tuple[UnitCapacity, ...]
    estimator: Estimator
    num_gpus: int

    @property
    def without_place(self) -> frozenset[str]:
        """Returns models that may be scaled to zero and have no place: where units could hold them, they take turns."""
        placed = self.plan.placed.union(self.plan.unplaced)
        late = (m for m in self.models if m.min_replicas == 0 and m.model not in placed)
        return frozenset(m.model for m in late if fits_alone(m, self.units))

    def estimate(self) -> FleetEstimate:
        return estimate(self.units, self.models, self.plan, self.estimator)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnoughUnits:
    """Fewer units that serve as much, by pool, and the smallest headroom of any."""

    of_pools: Mapping[str, int]
    num_gpus: int
    headroom: float


def plan_fleet(fleet: FleetFile, *, current: Plan | None = None, is_time_up: IsTimeUp = lambda: False) -> PlannedFleet:
    """Plans for units of the sizes that the file gives. Reads every model's config.json.

    Raises:
        SourceNotFound: a checkpoint is not there.
        UnsupportedModel: a checkpoint cannot be served.
        FleetTooLarge: solver exhaustive only.
    """
    models, estimator = placement_models(fleet), estimator_of(fleet)
    units = size_pools(units_of_fleet(fleet), models, estimator, is_time_up)
    plan = _solver(fleet).for_units(estimator, is_time_up).solve(units, models, current)
    return PlannedFleet(plan=plan, models=models, units=units, estimator=estimator, num_gpus=_num_gpus(fleet))


def lay_out_fleet(fleet: FleetFile, *, is_time_up: IsTimeUp = lambda: False) -> PlannedFleet:
    """Plans for the same nodes, with mesh sizes of the solver's choice. Raises as `plan_fleet`."""
    models, estimator = placement_models(fleet), estimator_of(fleet)
    layout = _fleet_solver(fleet, estimator, is_time_up).lay_out(node_pools(fleet), models)
    units = with_pools_of(layout.plan, layout.units)
    return PlannedFleet(plan=layout.plan, models=models, units=units, estimator=estimator, num_gpus=_num_gpus(fleet))


def with_solver(fleet: FleetFile, solver: str | None) -> FleetFile:
    """Replaces the solver, also by names that no fleet file takes."""
    if solver is None:
        return fleet
    return fleet.model_copy(update={"placement": fleet.placement.model_copy(update={"solver": solver})})


def most_served_by(fleet: FleetFile, planned: PlannedFleet, *, choose_meshes: bool) -> float:
    """Requests per second within SLO that no plan exceeds."""
    if choose_meshes:
        return most_served_of_nodes(node_pools(fleet), planned.models, planned.estimator)
    return most_served(planned.units, planned.models, planned.estimator)


def fewest_units(
    fleet: FleetFile, planned: PlannedFleet, *, choose_meshes: bool, is_time_up: IsTimeUp = lambda: False
) -> EnoughUnits | None:
    """Units, of the file's sizes unless meshes are chosen, that would serve as much with a quarter more load, too; None
    if no fewer GPUs were found to do.
    """
    if any(pool.role for pool in fleet.pools):
        return None  # whole units are looked for, which do both
    pools = node_pools(fleet)
    if not choose_meshes:
        pools = tuple(replace(pool, mesh_sizes=(of.mesh_gpus,)) for pool, of in zip(pools, fleet.pools, strict=True))
    solver = SearchSolver(
        estimator=planned.estimator, is_time_up=is_time_up, least_margin=_ROOM_TO_SPARE, fewest_gpus=True
    )
    tight = solver.lay_out(pools, planned.models)
    found = estimate(tight.units, planned.models, tight.plan, planned.estimator)
    serves_less = found.objective()[:2] < planned.estimate().objective()[:2]
    num_gpus = sum(unit.num_gpus for unit in tight.units)
    more = num_gpus >= sum(unit.num_gpus for unit in planned.units)
    headroom = min((u.headroom for u in found.units), default=math.inf)
    serves_nothing = found.served_per_s <= 0 < found.rate_per_s  # on however many units
    if serves_less or more or len(tight.plan.unplaced) > len(planned.plan.unplaced) or headroom < 1 or serves_nothing:
        return None
    return EnoughUnits(of_pools=Counter(unit.pool for unit in tight.units), num_gpus=num_gpus, headroom=headroom)


def estimator_of(fleet: FleetFile) -> Estimator:
    """The control loop of the running fleet plans by the same."""
    return profiled_costs(profiles_of(fleet)).estimator


def placement_models(fleet: FleetFile) -> tuple[PlacementModel, ...]:
    return tuple(_placement_models(fleet))


def units_of_fleet(fleet: FleetFile) -> tuple[UnitCapacity, ...]:
    return tuple(unit for pool in fleet.pools for unit in _units(fleet, pool))


def node_pools(fleet: FleetFile) -> tuple[NodePool, ...]:
    return tuple(
        NodePool(
            name=pool.name,
            num_nodes=pool.nodes.min,
            gpus_per_node=pool.devices_per_node,
            device=hardware_of(pool).device,
            memory_bytes=_memory_bytes(fleet, pool) // pool.mesh_gpus,
            block_bytes=fleet.engine.block_bytes,
            total_blocks=_pool_bytes(fleet, pool) // pool.mesh_gpus // fleet.engine.block_bytes,
            sizes_pool=pool.kv_bytes is None,
            mesh_sizes=(pool.mesh_gpus,) if pool.device == "cpu" else MESH_SIZES,
            max_models=fleet.backend(pool).max_models,
            launch_limits=_launch_limits(fleet),
            native_on=_native_on(fleet, pool),
        )
        for pool in fleet.pools
    )


def _num_gpus(fleet: FleetFile) -> int:
    return sum(pool.num_gpus for pool in node_pools(fleet))


def _solver(fleet: FleetFile) -> SolverEntry:
    name = fleet.placement.solver
    if name not in SOLVERS:
        raise OptionNotUsable(option="--solver", value=name, remedy=SOLVERS.remedy(name))
    return SOLVERS[name]


def _fleet_solver(fleet: FleetFile, estimator: Estimator, is_time_up: IsTimeUp) -> FleetSolver:
    solver = _solver(fleet)
    if solver.make_for_nodes is None:
        able = ", ".join(name for name, other in SOLVERS.items() if other.make_for_nodes is not None)
        remedy = f"it does not choose mesh sizes; use one of {able}"
        raise OptionNotUsable(option="--solver", value=solver.name, remedy=remedy)
    if any(pool.role for pool in fleet.pools):
        remedy = "units of the solver's sizes have no roles; remove pools[].role, or leave the sizes as they are"
        raise OptionNotUsable(option="--choose-meshes", value=True, remedy=remedy)
    return solver.make_for_nodes(estimator, is_time_up)


def _placement_models(fleet: FleetFile) -> Iterator[PlacementModel]:
    """Models of one shape have one spec: latency models remember what they have worked out by its identity."""
    known: dict[ModelSpec, ModelSpec] = {}
    for settings in with_adapters_folded(fleet.models):
        dtype = settings.dtype or fleet.engine.dtype
        read = read_model_spec(settings.id, settings.source, settings.revision, dtype, settings.weights)
        spec = known.setdefault(read, read)
        adapters = bytes_of_adapters(spec, adapters_of(fleet.models, settings.id))
        catalogued = CatalogModel(settings=settings, dtype=dtype, created_s=0, spec=spec, adapters_bytes=adapters)
        model = catalogued.placement()
        assert model is not None, "its spec is known"
        yield model


def _units(fleet: FleetFile, pool: PoolSection) -> Iterator[UnitCapacity]:
    # Once for all units: a profile is read and fitted for each.
    memory_bytes, pool_bytes, device = _memory_bytes(fleet, pool), _pool_bytes(fleet, pool), hardware_of(pool).device
    for i in range(pool.num_units):
        yield UnitCapacity(
            unit_id=f"{pool.name}/{i}",
            num_gpus=pool.mesh_gpus,
            memory_bytes=memory_bytes,
            block_bytes=fleet.engine.block_bytes,
            total_blocks=pool_bytes // fleet.engine.block_bytes,
            sizes_pool=pool.kv_bytes is None,
            pool=pool.name,
            node=f"{pool.name}/{i * pool.mesh_gpus // pool.devices_per_node}",
            device=device,
            max_models=fleet.backend(pool).max_models,
            launch_limits=_launch_limits(fleet),
            role=UnitRole(pool.role or UnitRole.BOTH),
            native_on=_native_on(fleet, pool),
        )


def _launch_limits(fleet: FleetFile) -> LaunchLimits:
    engine = fleet.engine
    return LaunchLimits(batch_tokens=engine.max_batch_tokens, sequences=engine.max_running_sequences)


def _native_on(fleet: FleetFile, pool: PoolSection) -> NativeDevice | None:
    backend = fleet.backend(pool)
    return backend.native_on.get(backend.kinds.get(pool.device, ""))


def _pool_bytes(fleet: FleetFile, pool: PoolSection) -> int:
    """Of one unit; of one whose pool has no size yet all of its memory."""
    return _memory_bytes(fleet, pool) if pool.kv_bytes is None else int(pool.kv_bytes)


def _memory_bytes(fleet: FleetFile, pool: PoolSection) -> int:
    """Of one unit. Where the plan may fill it to the brim, without what the engine keeps for itself."""
    if pool.device_memory is not None:
        return int(pool.device_memory)
    if pool.gpu_type is None:
        return host_memory_bytes()
    device_bytes = hardware_of(pool).device.memory_bytes
    if pool.kv_bytes is None:
        device_bytes = fleet.backend(pool).fillable_bytes(device_bytes)
    return device_bytes * pool.mesh_gpus
