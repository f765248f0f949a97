"""Which models sit on which units, with which quotas."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from placement.errors import InvalidPlan
from placement.launch_limits import DEFAULT_LIMITS, LaunchLimits
from profiler.specs import DeviceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCapacity:
    """What a unit offers, all its GPUs together. `total_blocks` counts the token blocks of its KV pool, `block_bytes`
    their size; the pool is part of `memory_bytes`. `device` is one of its GPUs; None: its speed is not known, and only
    memory can be planned for. `max_models` None: as many as fit. `launch_limits` are its engine's: each model
    needs room for such launches. `asleep` are models whose weights its host memory holds, with the seconds that waking
    each takes; they change what a move costs, not what the unit offers.
    """

    unit_id: str
    num_gpus: int
    memory_bytes: int
    block_bytes: int
    total_blocks: int
    pool: str = ""
    node: str = ""
    device: DeviceSpec | None = None
    max_models: int | None = None
    launch_limits: LaunchLimits = DEFAULT_LIMITS
    asleep: Mapping[str, float] = field(default_factory=dict, compare=False)


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

    def units_of(self, model: str) -> tuple[str, ...]:
        """Ids of the units that hold a replica of `model`."""
        return tuple(u.unit_id for u in self.units if any(p.model == model for p in u.models))

    def models_of(self, unit_id: str) -> tuple[ModelPlacement, ...]:
        return next((u.models for u in self.units if u.unit_id == unit_id), ())

    def validate(self, units: Sequence[UnitCapacity]) -> None:
        """Checks the plan against what the units offer; whether weights fit is `placement.estimation.memory`'s to say.

        Raises:
            InvalidPlan: with every problem found.
        """
        problems = tuple(self._problems({u.unit_id: u for u in units}))
        if problems:
            raise InvalidPlan(problems=problems)

    def _problems(self, capacity: Mapping[str, UnitCapacity]) -> Iterator[str]:
        for unit_id, count in Counter(u.unit_id for u in self.units).items():
            if count > 1:
                yield f"unit {unit_id!r} appears {count} times"
            if unit_id not in capacity:
                yield f"unit {unit_id!r} does not exist"
        for unit in self.units:
            for model, count in Counter(p.model for p in unit.models).items():
                if count > 1:
                    yield f"unit {unit.unit_id!r} holds {model!r} {count} times"
            for placement in unit.models:
                if placement.quota_blocks <= 0:
                    yield f"unit {unit.unit_id!r} gives {placement.model!r} {placement.quota_blocks} blocks"
            most = capacity[unit.unit_id].max_models if unit.unit_id in capacity else None
            if most is not None and len(unit.models) > most:
                yield f"unit {unit.unit_id!r} holds {len(unit.models)} models, its engine serves {most}"
            granted = sum(p.quota_blocks for p in unit.models)
            if unit.unit_id in capacity and granted > capacity[unit.unit_id].total_blocks:
                yield f"unit {unit.unit_id!r} grants {granted} of {capacity[unit.unit_id].total_blocks} blocks"
