"""Running units that new demand overloads: replicas are added, and spare ones make room, before anything moves."""

from collections.abc import Callable

from placement.packing.insertion import Insertion, InsertionRules
from placement.packing.packing import Packing
from placement.packing.packing_objective import key_of

IsTimeUp = Callable[[], bool]

_NO_LOAD = 1e-9
_MOST_TRIED = 64  # units, the roomiest
_FEW_OVERLOADED, _MOST_TRIALS = 32, 40  # units; attempts where more of them are: building anew pays more


def insert_missing(packing: Packing, rules: InsertionRules, is_time_up: IsTimeUp) -> None:
    """Load that no replica has, and replicas that must be. Models without any come first, and get one in any case."""
    insertion = Insertion(packing, rules, is_time_up=is_time_up)
    for model in sorted(range(len(packing.homes)), key=lambda m: (bool(packing.homes[m]), m)):
        wanted, homes = packing.instance.models[model], packing.homes[model]
        if homes and is_time_up():
            return
        missing = max(0.0, wanted.demand.rate_per_s - sum(packing.parts[u][model] for u in homes))
        if missing > _NO_LOAD or len(homes) < wanted.min_replicas:
            insertion.insert(model, missing)


def relieve(packing: Packing, rules: InsertionRules, is_time_up: IsTimeUp) -> None:
    """Shares the load of models on overloaded units with new replicas elsewhere, the hottest first."""
    insertion = Insertion(packing, rules, is_time_up=is_time_up)
    overloaded = [u for u in packing.open_units() if packing.factor[u] < 1]
    parts = [(packing.parts[u][m], u, m) for u in overloaded for m in packing.parts[u]]
    most = len(parts) if len(overloaded) <= _FEW_OVERLOADED else _MOST_TRIALS
    for rate, unit, model in sorted(parts, key=lambda part: (-part[0], part[1:]))[:most]:
        if is_time_up():
            return
        factor = float(packing.factor[unit])
        if factor >= 1 or len(packing.homes[model]) >= packing.instance.models[model].max_replicas:
            continue
        before = key_of(packing)
        packing.begin()
        packing.set_rate(unit, model, rate * factor / rules.margin)
        insertion.insert(model, rate * (1 - factor / rules.margin))
        if key_of(packing)[:3] < before[:3]:
            packing.commit()
        else:
            packing.roll_back()


def keep_spare(packing: Packing, is_time_up: IsTimeUp) -> None:
    """Replicas that run and are not needed stay where that costs nothing: a drain serves nobody. Some are looked at
    even when time is up: it always is after a search that could not serve all.
    """
    for number, (unit, model) in enumerate(sorted((packing.running or frozenset()) - packing.pairs())):
        if is_time_up() and number >= _MOST_TRIALS:
            return
        homes = sorted(packing.homes[model])
        most = packing.instance.models[model].max_replicas  # a model that moved has others now
        if not 0 < len(homes) < most:
            continue
        before = key_of(packing)
        part = sum(packing.parts[u][model] for u in homes) / (len(homes) + 1)
        costs = packing.costs_of(unit)
        if not bool(costs.holds(packing.sums[unit] + costs.sums(model, part))):
            continue
        packing.begin()
        for home in homes:
            packing.set_rate(home, model, packing.parts[home][model] * len(homes) / (len(homes) + 1))
        packing.put(unit, model, part)
        if key_of(packing)[:3] <= before[:3]:
            packing.commit()
        else:
            packing.roll_back()


def evict_spare(packing: Packing, is_time_up: IsTimeUp) -> None:
    """Gives models of overloaded units a replica in the place of spare ones of other models, the hottest first."""
    overloaded = [u for u in packing.open_units() if packing.factor[u] < 1]
    parts = [(packing.parts[u][m], u, m) for u in overloaded for m in packing.parts[u]]
    trials = 0
    for _, unit, model in sorted(parts, key=lambda part: (-part[0], part[1:])):
        factor = float(packing.factor[unit])
        homes = packing.homes[model]
        if factor >= 1 or unit not in homes or len(homes) >= packing.instance.models[model].max_replicas:
            continue
        others = sorted(set(packing.open_units()) - homes, key=lambda u: (-packing.factor[u], u))
        for other in others[:_MOST_TRIED]:
            trials += 1
            if is_time_up() or (trials > _MOST_TRIALS and len(overloaded) > _FEW_OVERLOADED):
                return
            if _evicted(packing, unit, model, other):
                break


def _evicted(packing: Packing, unit: int, model: int, other: int) -> bool:
    """One more replica of `model` on `other`, with half of the load that it has on `unit`, if that serves more."""
    before = key_of(packing)
    costs, part = packing.costs_of(other), packing.parts[unit][model] / 2
    if not costs.runs[model]:
        return False
    packing.begin()
    spare = [m for m in packing.parts[other] if len(packing.homes[m]) > max(1, packing.instance.models[m].min_replicas)]
    for victim in [None, *sorted(spare, key=lambda m: (packing.parts[other][m], m))]:
        if victim is not None:
            _hand_over(packing, other, victim)
        if bool(costs.holds(packing.sums[other] + costs.sums(model, part))):
            packing.set_rate(unit, model, part)
            packing.put(other, model, part)
            if key_of(packing)[:3] < before[:3]:
                packing.commit()
                return True
            packing.set_rate(unit, model, packing.parts[unit][model] + packing.take(other, model))
    packing.roll_back()
    return False


def _hand_over(packing: Packing, unit: int, model: int) -> None:
    """The replica goes; the model's others share its load."""
    rate = packing.take(unit, model)
    homes = sorted(packing.homes[model])
    for home in homes:
        packing.set_rate(home, model, packing.parts[home][model] + rate / len(homes))
