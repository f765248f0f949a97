"""More replicas than the demand needs, on units that run anyway: bursts find room, and waits get shorter."""

import numpy as np

from placement.packing import Packing

_ENOUGH = 4.0  # times the load: more of it shortens waits little
_LEAST_GAIN = 1.1
_STILL_ROOMY = 1.5  # times the load: what a unit keeps that takes a replica for the sake of bursts


def add_headroom(packing: Packing) -> None:
    """Where models may have more replicas than their load needs: full units share with those that are not, and then
    every model goes onto as many units as it may. A burst of one model then finds several prefill lanes, and a unit
    that is lost takes less with it.
    """
    _relieve_full_units(packing)
    _spread_bursts(packing)


def _relieve_full_units(packing: Packing) -> None:
    full: set[int] = set()
    while True:
        units = [u for u in packing.open_units() if u not in full and packing.factor[u] < _ENOUGH and packing.parts[u]]
        if not units:
            return
        fullest = min(units, key=lambda u: (packing.factor[u], u))
        if not _shared(packing, fullest):
            full.add(fullest)


def _spread_bursts(packing: Packing) -> None:
    """Another replica each time to the model with the fewest, of these the hottest, where it leaves most room."""
    models = packing.instance.models
    growing = [m for m, homes in enumerate(packing.homes) if homes and models[m].demand.rate_per_s > 0]
    while growing := [m for m in growing if len(packing.homes[m]) < models[m].max_replicas]:
        model = min(growing, key=lambda m: (len(packing.homes[m]), -models[m].demand.rate_per_s, m))
        homes = sorted(packing.homes[model])
        part = sum(packing.parts[u][model] for u in homes) / (len(homes) + 1)
        best = _roomiest(packing, model, part)
        if best is None or best[0] < _STILL_ROOMY:
            growing.remove(model)
            continue
        for unit in homes:
            packing.set_rate(unit, model, part)
        packing.put(best[1], model, part)


def _shared(packing: Packing, unit: int) -> bool:
    for model, rate in sorted(packing.parts[unit].items(), key=lambda part: (-part[1], part[0])):
        if len(packing.homes[model]) >= packing.instance.models[model].max_replicas or rate <= 0:
            continue
        before = float(packing.factor[unit])
        best = _roomiest(packing, model, rate / 2, above=before)
        if best is not None and best[0] > before * _LEAST_GAIN:
            packing.set_rate(unit, model, rate / 2)
            packing.put(best[1], model, rate / 2)
            return True
    return False


def _roomiest(packing: Packing, model: int, rate_per_s: float, *, above: float = 0.0) -> tuple[float, int] | None:
    """The unit that would have the largest factor with such a replica, and that factor."""
    best: tuple[float, int] | None = None
    for kind in range(len(packing.instance.kinds)):
        units, factors = packing.factors_with(model, rate_per_s, kind, above=above)
        if len(units):
            here = int(np.argmax(factors))
            option = (float(factors[here]), -int(units[here]))
            best = option if best is None else max(best, option)
    return None if best is None else (best[0], -best[1])
