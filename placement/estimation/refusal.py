"""Explains why no unit takes a model, and the smallest change that would make one take it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from placement.estimation.memory import bytes_for_models, divides, pool_blocks_beside, resident_bytes_on
from placement.estimation.quotas import QuotaClaim, QuotaShortage, shortage_of
from placement.plan import UnitCapacity
from placement.problem import PlacementModel
from profiler.native_refusal import NativeRefusal, native_refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shortfall:
    """What one unit lacks to take the model beside those it holds, in bytes of weights memory and of KV pool."""

    unit: UnitCapacity
    free_bytes: int
    missing_bytes: int
    missing_pool_bytes: int
    shortage: QuotaShortage | None


def refusal(
    model: PlacementModel,
    units: Sequence[tuple[UnitCapacity, Sequence[PlacementModel]]],
    *,
    rule: str | None = None,
) -> str:
    """`units` are all that could be tried, each with the models it holds. `rule`: why the solver may leave units
    aside that have room, and the remedy.

    Names one reason, that of the unit that lacks least, and one remedy.
    """
    if not units:
        return "there is no unit left to try; add a unit or lower the replicas it must have"
    able = [(unit, held) for unit, held in units if divides(model.spec, unit.num_gpus)]
    if not able:
        sizes = ", ".join(str(n) for n in sorted({unit.num_gpus for unit, _ in units}))
        return (
            f"{model.spec.num_heads} attention heads and {model.spec.num_kv_heads} KV heads cannot be divided among "
            f"the GPUs of any unit left ({sizes}); add units with 1 GPU, or another divisor of {model.spec.num_heads}"
        )
    refused = [engine_refusal(model, unit) for unit, _ in able]
    able = [(unit, held) for (unit, held), why in zip(able, refused, strict=True) if why is None]
    if not able:
        return "; ".join(dict.fromkeys(f"{why.reason}; {why.remedy}" for why in refused if why is not None))
    able = [(unit, held) for unit, held in able if not has_no_place(unit, held)]
    if not able:
        return "every unit that could take it has as many models as its engine serves; add a unit to its pool"
    closest = min((_shortfall(model, unit, held) for unit, held in able), key=_lack)
    if closest.shortage is not None and closest.shortage.missing_blocks is None:
        return f"{closest.shortage.reason}; raise engine.block_bytes"
    if closest.missing_bytes > 0:
        needed = _mib(resident_bytes_on(closest.unit, model))
        kinds = "weights, adapters and workspace" if model.adapters_bytes else "weights and workspace"
        reason = (
            f"needs {needed} for {kinds}, unit {closest.unit.unit_id} has "
            f"{_mib(max(0, closest.free_bytes))} free beside its KV pool"
        )
    else:
        if closest.shortage is None:
            assert rule is not None, "a unit that lacks nothing takes the model"
            return f"unit {closest.unit.unit_id} has room, but {rule}"
        reason = f"{closest.shortage.reason} (unit {closest.unit.unit_id})"
    has_room = fits_alone(model, [unit for unit, _ in able])
    beside = "add a unit, have models take turns (replicas.min: 0), or " if has_room else ""
    return f"{reason}; {beside}{_remedy(closest)}"


def fits_alone(model: PlacementModel, units: Iterable[UnitCapacity]) -> bool:
    """Says whether one of the units would take the model if it held no other."""
    able = (unit for unit in units if divides(model.spec, unit.num_gpus) and engine_refusal(model, unit) is None)
    return any(_lack(_shortfall(model, unit, ())) == 0 for unit in able)


def engine_refusal(model: PlacementModel, unit: UnitCapacity) -> NativeRefusal | None:
    """Returns why the unit's engine does not run the model, however much memory it has."""
    return None if unit.native_on is None else native_refusal(model.spec, unit.native_on, unit.num_gpus)


def has_no_place(unit: UnitCapacity, held: Sequence[object]) -> bool:
    """The unit's engine serves no more models than these."""
    return unit.max_models is not None and len(held) >= unit.max_models


def _lack(shortfall: _Shortfall) -> int:
    return shortfall.missing_bytes + shortfall.missing_pool_bytes


def _remedy(shortfall: _Shortfall) -> str:
    if shortfall.missing_pool_bytes == 0:
        ways = "a smaller KV pool (pools[].kv_memory), a smaller dtype or a larger device"
        return f"free {_mib(shortfall.missing_bytes)} there: {ways}"
    if shortfall.missing_bytes == 0:
        if shortfall.unit.sizes_pool:  # the pool is what the weights leave
            return f"use units with {_mib(shortfall.missing_pool_bytes)} more memory, or a smaller dtype"
        return f"raise the KV pool of its units (pools[].kv_memory) by {_mib(shortfall.missing_pool_bytes)}"
    return (
        f"use units with {_mib(shortfall.missing_bytes + shortfall.missing_pool_bytes)} more memory, "
        f"{_mib(shortfall.missing_pool_bytes)} of it for the KV pool"
    )


def _shortfall(model: PlacementModel, unit: UnitCapacity, held: Sequence[PlacementModel]) -> _Shortfall:
    needed_bytes = resident_bytes_on(unit, model)
    held_bytes = sum(resident_bytes_on(unit, m) for m in held)
    free_bytes = bytes_for_models(unit) - held_bytes
    shortage = shortage_of(
        [QuotaClaim.of(m, unit.block_bytes, unit.num_gpus) for m in (*held, model)],
        total_blocks=pool_blocks_beside(unit, held_bytes + needed_bytes),
    )
    # Where blocks are too small, more of them do not help: worse than any shortfall that memory can heal.
    missing_blocks = 0 if shortage is None else shortage.missing_blocks
    pool_bytes = unit.memory_bytes + needed_bytes
    return _Shortfall(
        unit=unit,
        free_bytes=free_bytes,
        missing_bytes=max(0, needed_bytes - free_bytes),
        missing_pool_bytes=pool_bytes if missing_blocks is None else missing_blocks * unit.block_bytes,
        shortage=shortage,
    )


def _mib(num_bytes: int) -> str:
    """Rounded up, so that what is asked for is enough.

    >>> _mib(3 * 1024**2 + 1), _mib(5 * 1024**3)
    ('4 MiB', '5.0 GiB')
    """
    mib = -(-num_bytes // 1024**2)
    return f"{mib} MiB" if mib < 4096 else f"{-(-mib * 10 // 1024) / 10} GiB"
