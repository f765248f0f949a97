"""Tells what of a slow step is the unit's and what the model's doing: a model is slow wherever it runs, a unit with
whatever it runs.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

_ROUNDS = 10
_FEWEST_UNITS = 3  # of a pool, before what they have in common is the pool's


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitResiduals:
    """Logarithms of factors: of pools, of units with their pool's, of models beyond their units'."""

    pools: Mapping[str, float]
    units: Mapping[str, float]
    models: Mapping[str, float]

    def of_unit(self, unit_id: str, pool: str) -> float:
        return self.units.get(unit_id, self.pools.get(pool, 0.0))


def split_residuals(residuals: Mapping[tuple[str, str], float], pool_of: Mapping[str, str]) -> SplitResiduals:
    """`residuals` are log(measured / expected) by unit and model. Median polish (Tukey): units first, so that where
    both would do it is the unit, which a move can mend.

    >>> found = split_residuals({("u", "a"): 0.3, ("u", "b"): 0.3, ("v", "b"): 0.0}, {"u": "p", "v": "p"})
    >>> found.units, found.models
    ({'u': 0.3, 'v': 0.0}, {'a': 0.0, 'b': 0.0})
    """
    left = dict(residuals)
    units, models = ({key[side]: 0.0 for key in sorted(left)} for side in (0, 1))
    for _ in range(_ROUNDS):
        for side, effects in ((0, units), (1, models)):
            found = _medians(left, side)
            for name, effect in found.items():
                effects[name] += effect
            left = {key: residual - found[key[side]] for key, residual in left.items()}
    of_pools: dict[str, list[float]] = {}
    for unit_id, effect in units.items():
        of_pools.setdefault(pool_of[unit_id], []).append(effect)
    pools = {pool: statistics.median(mine) for pool, mine in of_pools.items() if len(mine) >= _FEWEST_UNITS}
    return SplitResiduals(pools=pools, units=units, models=models)


def _medians(residuals: Mapping[tuple[str, str], float], side: int) -> Mapping[str, float]:
    groups: dict[str, list[float]] = {}
    for key, residual in residuals.items():
        groups.setdefault(key[side], []).append(residual)
    return {name: statistics.median(group) for name, group in groups.items()}
