"""Which models sit on which units, with which quotas."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCapacity:
    """What a unit offers. `total_blocks` counts the token blocks of its KV pool, `block_bytes` their size."""

    unit_id: str
    num_gpus: int
    memory_bytes: int
    block_bytes: int
    total_blocks: int


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
    """`unplaced` maps a model to the reason why no unit took it."""

    units: tuple[UnitPlan, ...]
    unplaced: Mapping[str, str] = field(default_factory=dict)

    def units_of(self, model: str) -> tuple[str, ...]:
        """Ids of the units that hold a replica of `model`."""
        return tuple(u.unit_id for u in self.units if any(p.model == model for p in u.models))
