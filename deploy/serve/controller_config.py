"""Defines the Controller's `user_config`, which changes without a restart."""

from typing import Any

from deploy.fleet_file.model_section import ModelSection
from deploy.fleet_file.scaling_section import NodesSection, ScalingSection
from deploy.fleet_file.section import StateSection
from deploy.fleet_file.setting_types import Dtype
from deploy.fleet_file.settings import PlacementSection
from deploy.serve.app_args import Args


class PoolNodes(Args):
    """Says what decides how many nodes a pool has."""

    nodes: NodesSection
    scaling: ScalingSection | None = None
    devices_per_node: int
    mesh_gpus: int


class ControllerConfig(Args):
    """`expected_units` says by pool how many units there shall be."""

    models: tuple[ModelSection, ...]
    dtype: Dtype | None = None
    policy: str
    placement: PlacementSection = PlacementSection()
    name: str = "fleet"
    state: StateSection = StateSection()
    hold_s: float = 30.0
    expected_units: dict[str, int]
    profiles: dict[str, str] | None = None
    """Of the pools that have one: what their units are planned by."""
    pools: dict[str, PoolNodes] | None = None
    """All, where one may grow."""

    def as_user_config(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_none=True)
