"""Defines which models sit on which units, with which quotas."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from placement.launch_limits import DEFAULT_LIMITS, LaunchLimits
from placement.step_correction import UNCORRECTED, StepCorrection
from placement.unit_role import UnitRole
from profiler.native_refusal import NativeDevice
from profiler.specs import DeviceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCapacity:
    """Holds what a unit offers, all its GPUs together. `total_blocks` counts the token blocks of its KV pool,
    `block_bytes` their size; the pool is part of `memory_bytes`. `sizes_pool`: the pool has no size yet: it gets what
    the models leave of the memory, and `total_blocks` are all that this may be. `device` is one of its GPUs; None: its
    speed is not known, and only memory can be planned for. `max_models` None: as many as fit. `launch_limits` are its
    engine's: each model needs room for such launches. `correction` is what its measured steps say of the estimate.
    `asleep` are models whose weights its host memory holds, with the seconds that waking each takes; they change what a
    move costs, not what the unit offers. `role` is the part of requests that it is for. `native_on`: what muxfleet's
    own engine computes on there, which does not run every model; None: the engine takes any that plans know.
    """

    unit_id: str
    num_gpus: int
    memory_bytes: int
    block_bytes: int
    total_blocks: int
    sizes_pool: bool = False
    pool: str = ""
    node: str = ""
    device: DeviceSpec | None = None
    max_models: int | None = None
    launch_limits: LaunchLimits = DEFAULT_LIMITS
    correction: StepCorrection = UNCORRECTED
    asleep: Mapping[str, float] = field(default_factory=dict, compare=False)
    role: UnitRole = UnitRole.BOTH
    native_on: NativeDevice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlacement:
    """One replica of `model` with the token blocks it may hold."""

    model: str
    quota_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPlan:
    unit_id: str
    models: tuple[ModelPlacement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`unplaced` maps a model to the reason why no unit took it, or why it has fewer replicas than it must have."""

    units: tuple[UnitPlan, ...]
    unplaced: Mapping[str, str] = field(default_factory=dict)

    @property
    def placed(self) -> frozenset[str]:
        """Models with a replica."""
        return frozenset(p.model for u in self.units for p in u.models)

    def units_of(self, model: str) -> tuple[str, ...]:
        """Ids of the units that hold a replica of `model`."""
        return tuple(u.unit_id for u in self.units if any(p.model == model for p in u.models))

    def models_of(self, unit_id: str) -> tuple[ModelPlacement, ...]:
        return next((u.models for u in self.units if u.unit_id == unit_id), ())
