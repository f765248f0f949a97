"""The placement that the control loop starts with, worked out from the fleet file alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import psutil

from deploy.catalog import CatalogModel
from deploy.model_specs import read_model_spec
from deploy.render import units_of
from deploy.settings import FleetFile, PoolSection
from placement.plan import Plan, UnitCapacity
from placement.solvers.base import PlacementModel, Solver
from placement.solvers.memory_greedy import MemoryGreedySolver
from profiler.devices import device_named

SOLVERS: Mapping[str, type[Solver]] = {"memory_greedy": MemoryGreedySolver}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFleet:
    plan: Plan
    models: tuple[PlacementModel, ...]
    units: tuple[UnitCapacity, ...]


def plan_fleet(fleet: FleetFile) -> PlannedFleet:
    """Reads every model's config.json.

    Raises:
        SourceNotFound: a checkpoint is not there.
        UnsupportedModel: a checkpoint cannot be served.
    """
    models = tuple(_placement_models(fleet))
    units = tuple(unit for pool in fleet.pools for unit in _units(fleet, pool))
    plan = SOLVERS[fleet.placement.solver]().solve(units, models, None)
    return PlannedFleet(plan=plan, models=models, units=units)


def _placement_models(fleet: FleetFile) -> Iterator[PlacementModel]:
    for settings in fleet.models:
        dtype = settings.dtype or fleet.engine.dtype
        spec = read_model_spec(settings.id, settings.source, settings.revision, dtype)
        model = CatalogModel(settings=settings, dtype=dtype, created_s=0, spec=spec).placement()
        assert model is not None, "its spec is known"
        yield model


def _units(fleet: FleetFile, pool: PoolSection) -> Iterator[UnitCapacity]:
    if pool.device_memory is not None:
        memory_bytes = int(pool.device_memory)
    elif pool.gpu_type is not None:
        memory_bytes = device_named(pool.gpu_type).memory_bytes * pool.mesh_gpus
    else:
        memory_bytes = psutil.virtual_memory().total
    for i in range(units_of(pool)):
        yield UnitCapacity(
            unit_id=f"{pool.name}/{i}",
            num_gpus=pool.mesh_gpus,
            memory_bytes=memory_bytes,
            block_bytes=fleet.engine.block_bytes,
            total_blocks=pool.kv_memory // fleet.engine.block_bytes,
        )
