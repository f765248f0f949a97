"""Nodes that can be divided into units, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from placement.launch_limits import DEFAULT_LIMITS, LaunchLimits
from placement.plan import Plan, UnitCapacity
from profiler.native_refusal import NativeDevice
from profiler.specs import DeviceSpec

MESH_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePool:
    """Nodes that are alike. `memory_bytes` and `total_blocks` are those of one GPU; `mesh_sizes` are the GPU counts
    that a unit may have, `max_models` how many models its engine serves, `sizes_pool` and `native_on` as in
    UnitCapacity.
    """

    name: str
    num_nodes: int
    gpus_per_node: int
    device: DeviceSpec
    memory_bytes: int
    block_bytes: int
    total_blocks: int
    sizes_pool: bool = False
    mesh_sizes: tuple[int, ...] = MESH_SIZES
    max_models: int | None = None
    launch_limits: LaunchLimits = DEFAULT_LIMITS
    native_on: NativeDevice | None = None

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node

    def sizes(self) -> tuple[int, ...]:
        """Mesh sizes that fit a node, small ones first."""
        return tuple(sorted(size for size in self.mesh_sizes if size <= self.gpus_per_node))

    def unit(self, node: int, first_gpu: int, num_gpus: int) -> UnitCapacity:
        """GPUs `first_gpu` and following of node `node` as one unit."""
        return UnitCapacity(
            unit_id=f"{self.name}/{node}/{first_gpu}" + (f"-{first_gpu + num_gpus - 1}" if num_gpus > 1 else ""),
            num_gpus=num_gpus,
            memory_bytes=self.memory_bytes * num_gpus,
            block_bytes=self.block_bytes,
            total_blocks=self.total_blocks * num_gpus,
            sizes_pool=self.sizes_pool,
            pool=self.name,
            node=f"{self.name}/{node}",
            device=self.device,
            max_models=self.max_models,
            launch_limits=self.launch_limits,
            native_on=self.native_on,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """`units` are those that the nodes were divided into; GPUs in no unit stay idle."""

    units: tuple[UnitCapacity, ...]
    plan: Plan

    @property
    def num_gpus(self) -> int:
        """GPUs of units that hold a model."""
        held = {u.unit_id for u in self.plan.units if u.models}
        return sum(u.num_gpus for u in self.units if u.unit_id in held)


def openings_of(pools: Sequence[NodePool]) -> tuple[tuple[int, UnitCapacity], ...]:
    """A unit of every shape that a node of each pool can be cut into, with the pool's number."""
    return tuple((number, pool.unit(0, 0, size)) for number, pool in enumerate(pools) for size in pool.sizes())
