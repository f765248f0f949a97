"""More replicas than the demand needs, on units that run anyway: bursts find room, and waits get shorter."""

from collections.abc import Callable

from placement.packing.headroom_balancing import balance_headroom
from placement.packing.packing import Packing

_STILL_ROOMY = 1.5  # times the load: what a unit keeps that takes a replica for the sake of bursts


def add_headroom(packing: Packing, *, moves: bool = True, is_time_up: Callable[[], bool] = lambda: False) -> None:
    """Full units share with those that are not, and then every model goes onto as many units as it may. A burst of one
    model then finds several prefill lanes, and a unit that is lost takes less with it. Without `moves` every replica
    stays where it is.
    """
    balance_headroom(packing, moves=moves, is_time_up=is_time_up)
    _spread_bursts(packing, is_time_up)


def _spread_bursts(packing: Packing, is_time_up: Callable[[], bool]) -> None:
    """Another replica each time to the model with the fewest, of these the hottest, where it leaves most room."""
    models = packing.instance.models
    growing = [m for m, homes in enumerate(packing.homes) if homes and models[m].demand.rate_per_s > 0]
    while growing := [m for m in growing if len(packing.homes[m]) < models[m].max_replicas]:
        if is_time_up():
            return
        model = min(growing, key=lambda m: (len(packing.homes[m]), -models[m].demand.rate_per_s, m))
        homes = sorted(packing.homes[model])
        part = sum(packing.parts[u][model] for u in homes) / (len(homes) + 1)
        best = packing.roomiest(model, part)
        if best is None or best[0] < _STILL_ROOMY:
            growing.remove(model)
            continue
        for unit in homes:
            packing.set_rate(unit, model, part)
        packing.put(best[1], model, part)
