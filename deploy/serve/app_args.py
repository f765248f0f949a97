"""Defines what travels in the Serve config: `args` shape processes, `user_config` changes without a restart."""

from collections import ChainMap
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

from deploy.fleet_file.model_section import ModelSection
from deploy.fleet_file.scaling_section import NodesSection, ScalingSection
from deploy.fleet_file.section import BatchSection, DrainSection, SchedulerSection, StateSection, WatchSection
from deploy.fleet_file.setting_types import Dtype
from deploy.fleet_file.settings import PlacementSection

CONTROL_APP = "control"
GATEWAY_APP = "gateway"
CONTROLLER_DEPLOYMENT = "Controller"
GATEWAY_DEPLOYMENT = "Gateway"
UNIT_DEPLOYMENT = "Unit"


def units_app(pool: str) -> str:
    """Names the application of a pool's units: Serve restarts what is in an application whose `args` change."""
    return f"units-{pool}"


class Args(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def of(cls, *sections: BaseModel, **others: object) -> Self:
        """Takes each argument from `others` or from the first section that has a key of its name."""
        values = ChainMap[str, object](others, *(dict(section) for section in sections))
        return cls.model_validate({name: values[name] for name in cls.model_fields})


class UnitShape(Args, SchedulerSection):
    """The arguments of a pool's application: its units are alike."""

    pool: str
    num_gpus: int
    device: str
    sglang: dict[str, Any] | None = None
    """SGLang's options; None: our own engine."""
    gpu_type: str | None = None
    cores: int | None = None
    kv_pool_bytes: int | None = None
    device_memory_bytes: int | None = None
    host_memory_bytes: int | None = None
    gpus_per_node: int = 1
    profile: str | None = None
    guard: str | None = None
    block_bytes: int
    dtype: str | None = None
    role: Literal["prefill", "decode"] | None = None
    watch: WatchSection = WatchSection()
    drain: DrainSection = DrainSection()


class ControlArgs(Args):
    """Nothing: what the control loop has to know comes as `user_config`."""


class GatewayArgs(Args):
    max_body_bytes: int
    max_queued_requests: int
    hold_s: float
    unit_suspect_s: float = 3.0
    unit_lost_s: float = 10.0
    api_keys: str | None = None
    request_log: bool = False
    cors_origins: tuple[str, ...] = ()
    template_timeout_s: float = 2.0
    batches: BatchSection = BatchSection()
    console: bool = True


class PoolNodes(Args):
    """Says what decides how many nodes a pool has."""

    nodes: NodesSection
    scaling: ScalingSection | None = None
    devices_per_node: int
    mesh_gpus: int


class ControllerConfig(Args):
    """The Controller's `user_config`. By pool: how many units there shall be."""

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
