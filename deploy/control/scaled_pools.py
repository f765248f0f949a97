"""Makes of a fleet file what the control loop follows in numbers of nodes."""

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from deploy.control.pool_scaling import ScaledPool
from deploy.errors import FleetFileError
from deploy.fleet_file.forecast_section import season_of
from deploy.fleet_file.model_section import ModelSection
from deploy.fleet_file.scaling_section import NodesSection, ScalingSection, scaling_rules
from placement.scaling.seasonal_forecast import Season

logger = logging.getLogger(__name__)

_NO_SEASONS: Mapping[str, Season] = MappingProxyType({})


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


def scaled_pools(
    pools: Mapping[str, SizedPool], seasons: Mapping[str, Season] = _NO_SEASONS
) -> Mapping[str, ScaledPool]:
    """Returns all pools, as a model may be served by any; none where none may change."""
    scaled = {
        name: ScaledPool(
            rules=scaling_rules(p.nodes, p.scaling, p.devices_per_node, seasons.get(name)),
            units_per_node=p.devices_per_node // p.mesh_gpus,
        )
        for name, p in pools.items()
    }
    return scaled if any(s.rules.is_elastic for s in scaled.values()) else {}


def seasons_of(pools: Mapping[str, SizedPool], models: Sequence[ModelSection]) -> Mapping[str, Season]:
    """Reads what pools know of their seasons beforehand. Raises FleetFileError: a trace cannot be used."""
    return {
        name: season_of(pool.scaling.forecast, models, f"pools[{i}].scaling.forecast")
        for i, (name, pool) in enumerate(pools.items())
        if pool.scaling is not None and pool.scaling.forecast is not None
    }


def readable_seasons(pools: Mapping[str, SizedPool], models: Sequence[ModelSection]) -> Mapping[str, Season]:
    """The same; a season whose trace cannot be read on this node is learned from what comes."""
    found: dict[str, Season] = {}
    for name, pool in pools.items():
        try:
            found |= seasons_of({name: pool}, models)
        except FleetFileError as error:
            logger.warning("a forecast begins without its trace", extra={"pool": name, "reason": str(error)})
            assert pool.scaling is not None, "it has just been read"
            assert pool.scaling.forecast is not None, "it has just been read"
            found[name] = Season(season_s=pool.scaling.forecast.season_s)
    return found
