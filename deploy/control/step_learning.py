"""Corrects what plans expect of units and models by what was measured."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from deploy.control.step_evidence import MeasuredUnit, StepEvidence
from pdmux_actor.messages import StepPhase
from placement.plan import UnitCapacity
from placement.step_correction import UNCORRECTED, StepCorrection

_LOWEST, _HIGHEST = math.log(0.5), math.log(3.0)
# Factors come in steps of this, and one that is closer to what plans use already changes nothing: units that are alike
# shall be alike to the planner, and nothing shall move because of noise.
_BAND = 0.05
_EXPECTED_BESIDE = math.log(1.1)  # of a prefill beside decode, until a pool has shown its own
_PREFILL = (StepPhase.PREFILL, StepPhase.MIXED)
_DECODE = (StepPhase.DECODE, StepPhase.MIXED)


class StepLearning:
    """Brings corrections up to date in `settle`; between two of them they stay as they are, so that plans agree."""

    def __init__(self, evidence: StepEvidence | None = None) -> None:
        self.evidence = evidence or StepEvidence()
        self.kept: tuple[MeasuredUnit, ...] = ()  # changes in `settle` only: it is written whenever it does
        self._applies = False
        self._of_unit: dict[str, StepCorrection] = {}
        self._of_pool: dict[str, StepCorrection] = {}
        self._of_model: dict[str, StepCorrection] = {}

    def settle(self, now_s: float, *, contention: float, applies: bool) -> None:
        """`contention`: the estimate's own factor on decode beside a prefill. Unless it `applies`, what was found is
        told and corrects no plan.
        """
        self.evidence.forget_silent(now_s)
        self.kept = self.evidence.kept()
        self._applies = applies
        pool_of = self.evidence.pools()
        alone = self.evidence.log_factors(_DECODE)
        prefill, decode = (split_residuals(found, pool_of) for found in (self._prefills(pool_of), alone))
        beside = _excess(pool_of, self.evidence.log_factors((StepPhase.DECODE_BESIDE,)), alone)
        beside = {pool: excess - math.log(contention) for pool, excess in beside.items()}
        self._of_pool = {
            pool: _moved(before, prefill.pools.get(pool, 0.0), decode.pools.get(pool, 0.0), beside.get(pool, 0.0))
            for pool, before in {p: self._of_pool.get(p, UNCORRECTED) for p in pool_of.values()}.items()
        }
        self._of_unit = {
            u: _moved(
                self._of_unit.get(u, UNCORRECTED),
                prefill.of_unit(u, pool),
                decode.of_unit(u, pool),
                beside.get(pool, 0.0),
            )
            for u, pool in pool_of.items()
            if u in prefill.units or u in decode.units
        }
        self._of_model = {
            m: _moved(self._of_model.get(m, UNCORRECTED), prefill.models.get(m, 0.0), decode.models.get(m, 0.0), 0.0)
            for m in {*prefill.models, *decode.models}
        }

    def of_unit(self, unit_id: str, pool: str) -> StepCorrection:
        """Returns, of a unit that has not been measured, what its pool's units have in common."""
        return self._of_unit.get(unit_id) or self._of_pool.get(pool, UNCORRECTED)

    def corrected(self, unit: UnitCapacity) -> UnitCapacity:
        correction = self.of_unit(unit.unit_id, unit.pool)
        return unit if not self._applies or correction == unit.correction else replace(unit, correction=correction)

    def of_model(self, model: str) -> StepCorrection:
        return self._of_model.get(model, UNCORRECTED) if self._applies else UNCORRECTED

    def _prefills(self, pool_of: Mapping[str, str]) -> Mapping[tuple[str, str], float]:
        """Of prefills alone; where decode never rests, of those beside it, less what that costs the pool's prefills."""
        alone = self.evidence.log_factors(_PREFILL)
        beside = self.evidence.log_factors((StepPhase.PREFILL_BESIDE,))
        excess = _excess(pool_of, beside, alone)
        without = {key: found - excess.get(pool_of[key[0]], _EXPECTED_BESIDE) for key, found in beside.items()}
        return {**without, **alone}


def _excess(
    pool_of: Mapping[str, str],
    beside: Mapping[tuple[str, str], float],
    alone: Mapping[tuple[str, str], float],
) -> Mapping[str, float]:
    """Logarithms of how much longer steps take beside the other phase than alone: the median of each pool."""
    of_pools: dict[str, list[float]] = {}
    for key in sorted(beside.keys() & alone.keys()):
        of_pools.setdefault(pool_of[key[0]], []).append(beside[key] - alone[key])
    return {pool: statistics.median(found) for pool, found in of_pools.items()}


def _moved(before: StepCorrection, prefill: float, decode: float, contention: float) -> StepCorrection:
    return StepCorrection(
        prefill=_step(before.prefill, prefill),
        decode=_step(before.decode, decode),
        contention=_step(before.contention, contention),
    )


def _step(before: float, found: float) -> float:
    bounded = min(max(found, _LOWEST), _HIGHEST)
    return before if abs(bounded - math.log(before)) <= _BAND else math.exp(_BAND * round(bounded / _BAND))


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
    """Tells what of a slow step is the unit's and what the model's doing: a model is slow wherever it runs, a unit with
    whatever it runs. `residuals` are log(measured / expected) by unit and model. Median polish (Tukey): units first, so
    that where both would do it is the unit, which a move can mend.

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
