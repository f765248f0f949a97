"""More replicas than the demand needs, on units that run anyway: bursts find room, and waits get shorter."""

import numpy as np

from placement.packing import Packing

_ENOUGH = 4.0  # times the load: more of it shortens waits little
_LEAST_GAIN = 1.1


def add_headroom(packing: Packing) -> None:
    """Shares the load of the fullest units with units that have more headroom, where models may have more replicas."""
    full: set[int] = set()
    while True:
        units = [u for u in packing.open_units() if u not in full and packing.factor[u] < _ENOUGH and packing.parts[u]]
        if not units:
            return
        fullest = min(units, key=lambda u: (packing.factor[u], u))
        if not _shared(packing, fullest):
            full.add(fullest)


def _shared(packing: Packing, unit: int) -> bool:
    for model, rate in sorted(packing.parts[unit].items(), key=lambda part: (-part[1], part[0])):
        if len(packing.homes[model]) >= packing.instance.models[model].max_replicas or rate <= 0:
            continue
        before = float(packing.factor[unit])
        best: tuple[float, int] | None = None
        for kind in range(len(packing.instance.kinds)):
            units, factors = packing.factors_with(model, rate / 2, kind, above=before)
            if len(units):
                here = int(np.argmax(factors))
                option = (float(factors[here]), -int(units[here]))
                best = option if best is None else max(best, option)
        if best is not None and best[0] > before * _LEAST_GAIN:
            packing.set_rate(unit, model, rate / 2)
            packing.put(-best[1], model, rate / 2)
            return True
    return False
