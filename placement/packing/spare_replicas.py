"""More replicas than the demand needs, on units that run anyway: for bursts, and for the day a node is lost."""

from collections import defaultdict
from collections.abc import Callable, Mapping

from placement.packing.headroom_balancing import balance_headroom
from placement.packing.packing import Packing
from placement.plan import UnitCapacity

_STILL_ROOMY = 1.5  # times the load: what a unit keeps that takes a replica for the sake of bursts


def add_headroom(
    packing: Packing,
    units: Mapping[int, UnitCapacity],
    *,
    moves: bool = True,
    is_time_up: Callable[[], bool] = lambda: False,
) -> None:
    """Full units share with those that are not, and then every model goes onto as many units as it may. A burst of one
    model then finds several prefill lanes, and a unit that is lost takes less with it. Without `moves` every replica
    stays where it is.
    """
    balance_headroom(packing, moves=moves, is_time_up=is_time_up)
    spread_replicas(packing, units, is_time_up=is_time_up)


def spread_replicas(
    packing: Packing,
    units: Mapping[int, UnitCapacity],
    *,
    least_headroom: float = _STILL_ROOMY,
    beyond_two_nodes: float | None = None,
    is_time_up: Callable[[], bool] = lambda: False,
) -> None:
    """Gives another replica each time to the model with the fewest, of these the hottest, where it leaves most room: on
    a node that has none of it, if one of its units keeps `least_headroom`. A model that is on two nodes already gets
    one only where `beyond_two_nodes` is kept (None: the same): each further one makes the unit's rounds longer, and
    there is nothing left that a lost node takes whole.
    """
    on_node: defaultdict[str, set[int]] = defaultdict(set)
    for number, unit in units.items():
        on_node[unit.node].add(number)
    further = least_headroom if beyond_two_nodes is None else beyond_two_nodes
    models = packing.instance.models
    growing = [m for m, homes in enumerate(packing.homes) if homes and models[m].demand.rate_per_s > 0]
    while growing := [m for m in growing if len(packing.homes[m]) < models[m].max_replicas]:
        if is_time_up():
            return
        model = min(growing, key=lambda m: (len(packing.homes[m]), -models[m].demand.rate_per_s, m))
        homes = sorted(packing.homes[model])
        part = sum(packing.parts[u][model] for u in homes) / (len(homes) + 1)
        nodes = {units[u].node for u in homes if units[u].node}
        beside = frozenset[int]().union(*(on_node[node] for node in nodes))
        least = least_headroom if len(nodes) < 2 else further
        best = packing.roomiest(model, part, but=beside)
        if beside and (best is None or best[0] < least):
            best, least = packing.roomiest(model, part), further
        if best is None or best[0] < least:
            growing.remove(model)
            continue
        for home in homes:
            packing.set_rate(home, model, part)
        packing.put(best[1], model, part)
