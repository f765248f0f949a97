"""Replicas that have to be loaded go where their weights sleep: a wake is a copy, a load reads a disk."""

from collections.abc import Callable, Mapping

from placement.packing.packing import Packing, Pairs
from placement.packing.packing_objective import Key, key_of
from placement.plan import UnitCapacity


def prefer_waking(packing: Packing, units: Mapping[int, UnitCapacity], is_time_up: Callable[[], bool]) -> None:
    """Moves models in place to units that can wake them, wherever the plan is as good with that. What runs stays; of
    several units the quickest wake first.
    """
    running = packing.running or frozenset()
    index = packing.instance.index
    beds: dict[int, list[tuple[float, int]]] = {}
    for number, unit in units.items():
        for name, wake_s in unit.asleep.items():
            if name in index:
                beds.setdefault(index[name], []).append((wake_s, number))
    for unit_number, model in sorted(packing.pairs() - running) if beds else ():
        if is_time_up():
            return
        if model not in packing.parts[unit_number]:  # an exchange for another model has taken it elsewhere
            continue
        sleeps_on = sorted(beds.get(model, ()))
        if any(number == unit_number for _, number in sleeps_on):
            continue
        for _, bed in sleeps_on:
            if model not in packing.parts[bed] and _settled(packing, model, unit_number, bed, running, beds):
                break


def _settled(
    packing: Packing,
    model: int,
    home: int,
    bed: int,
    running: Pairs,
    beds: Mapping[int, list[tuple[float, int]]],
) -> bool:
    """Moves the replica, or exchanges it with another one that has to be loaded and does not sleep on `bed`."""
    before = key_of(packing)
    strangers = [
        other
        for other in sorted(packing.parts[bed])
        if (bed, other) not in running
        and other not in packing.parts[home]
        and all(number != bed for _, number in beds.get(other, ()))
    ]
    return any(_rearranged(packing, model, home, bed, other, before) for other in [None, *strangers])


def _rearranged(packing: Packing, model: int, home: int, bed: int, other: int | None, before: Key) -> bool:
    at_home, at_bed = dict(packing.parts[home]), dict(packing.parts[bed])
    at_bed[model] = at_home.pop(model)
    if other is not None:
        at_home[other] = at_bed.pop(other)
    if packing.factor_of(home, at_home) < 0 or packing.factor_of(bed, at_bed) < 0:
        return False
    packing.begin()
    packing.rearrange({home: at_home, bed: at_bed})
    if key_of(packing)[:3] <= before[:3]:
        packing.commit()
        return True
    packing.roll_back()
    return False
