"""Makes of a fleet file what the control loop follows in numbers of nodes."""

from collections.abc import Mapping, Sequence

from deploy.control.pool_scaling import ScaledPool
from deploy.fleet_file.scaling_section import scaling_rules
from deploy.fleet_file.settings import PoolSection


def scaled_pools(pools: Sequence[PoolSection]) -> Mapping[str, ScaledPool]:
    """Returns all pools, as a model may be served by any; none where none may change."""
    scaled = {
        p.name: ScaledPool(
            rules=scaling_rules(p.nodes, p.scaling, p.devices_per_node),
            units_per_node=p.devices_per_node // p.mesh_gpus,
        )
        for p in pools
    }
    return scaled if any(s.rules.is_elastic for s in scaled.values()) else {}
