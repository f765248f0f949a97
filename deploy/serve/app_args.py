"""Defines the `args` of a Serve config's applications, which shape processes. Those are built by tasks of Ray's that
import this, so it brings no planner and no model.
"""

from collections import ChainMap
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

from deploy.fleet_file.section import BatchSection, DrainSection, SchedulerSection, WatchSection

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
    name: str = ""
    """The fleet's. Empty: rendered by an earlier release, of which all fleets kept their batches in one folder."""
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
