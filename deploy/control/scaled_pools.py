"""Makes of a fleet file what the control loop follows in numbers of nodes."""

from collections.abc import Mapping
from typing import Protocol

from deploy.control.pool_scaling import ScaledPool
from deploy.fleet_file.scaling_section import NodesSection, ScalingSection, scaling_rules


class SizedPool(Protocol):
    """Says what decides how many nodes a pool has."""

    @property
    def nodes(self) -> NodesSection: ...

    @property
    def scaling(self) -> ScalingSection | None: ...

    @property
    def devices_per_node(self) -> int: ...

    @property
    def mesh_gpus(self) -> int: ...


def scaled_pools(pools: Mapping[str, SizedPool]) -> Mapping[str, ScaledPool]:
    """Returns all pools, as a model may be served by any; none where none may change."""
    scaled = {
        name: ScaledPool(
            rules=scaling_rules(p.nodes, p.scaling, p.devices_per_node),
            units_per_node=p.devices_per_node // p.mesh_gpus,
        )
        for name, p in pools.items()
    }
    return scaled if any(s.rules.is_elastic for s in scaled.values()) else {}
