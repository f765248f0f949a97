"""Estimates what a plan will serve, from the throughput estimate: the one yardstick for plans of any solver."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.estimation.model_floors import starved
from placement.estimation.problem_arrays import Estimator, Instance, UnitKind, make_instance
from placement.estimation.throughput import (
    BYTES,
    KV,
    LARGEST_FACTOR,
    NUM_SUMS,
    PREFILL,
    PREFILL_SQUARE,
    SLACK,
    Floats,
    KindCosts,
    Limit,
)
from placement.neighbour_strain import strain_of, strained
from placement.plan import Plan, UnitCapacity
from placement.problem import PlacementModel

_BALANCING_ROUNDS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaEstimate:
    model: str
    rate_per_s: float
    served_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillQueue:
    """The queue before a unit's prefill lane. `busy`: the share of the lane's time that prompts take; above 1 it grows.
    `work_s`: by which mean wait W and load tell of each other, W = work_s * busy / 2 (1 - busy) (Kingman): for prompts
    that are all as long and come at random what one takes. `slack_s`: what a prompt of each model may wait.
    """

    busy: float
    work_s: float
    slack_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitEstimate:
    """`headroom`: the factor by which the unit's load could grow within SLOs; below 1 so much of it is served. `limit`
    is what binds first. `decode_sms` are those that decode needs beside a prefill (0: they alternate), `tbt_s` is the
    99th percentile of gaps, None beyond what the unit can carry; shares are of the unit's KV pool, of its memory beside
    it, and of the prefill lane's time. `lane_headroom` is the headroom that all limits but that of first tokens would
    leave, `queue` what they wait in; None where nothing tells.
    """

    unit_id: str
    replicas: tuple[ReplicaEstimate, ...]
    headroom: float
    limit: Limit
    decode_sms: int
    tbt_s: float | None
    kv_share: float
    weights_share: float
    prefill_share: float
    lane_headroom: float
    queue: PrefillQueue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEstimate:
    """`served_per_s`: within SLO. `meets_slo` is False where it cannot on any unit of the fleet, at any load."""

    model: str
    rate_per_s: float
    served_per_s: float
    replicas: int
    meets_slo: bool

    @property
    def served_share(self) -> float:
        return min(1.0, self.served_per_s / self.rate_per_s) if self.rate_per_s > 0 else float(self.replicas > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEstimate:
    units: tuple[UnitEstimate, ...]
    models: tuple[ModelEstimate, ...]
    gpus_used: int

    @property
    def rate_per_s(self) -> float:
        return sum(m.rate_per_s for m in self.models)

    @property
    def served_per_s(self) -> float:
        return sum(m.served_per_s for m in self.models)

    @property
    def served_share(self) -> float:
        return self.served_per_s / self.rate_per_s if self.rate_per_s > 0 else 1.0

    @property
    def worst_share(self) -> float:
        return min((m.served_share for m in self.models if m.rate_per_s > 0), default=1.0)

    @property
    def worth(self) -> float:
        """The share of requests that is served within SLO, less what models that starve count."""
        shares = [m.served_share for m in self.models if m.rate_per_s > 0]
        return self.served_share - starved(np.array(shares, dtype=np.float64))

    def objective(self) -> tuple[float, float, int]:
        """More is better: what is served is worth, then the worst model's share, then GPUs left free."""
        return round(self.worth, 4), round(self.worst_share, 3), -self.gpus_used


def estimate(
    units: Sequence[UnitCapacity], models: Sequence[PlacementModel], plan: Plan, estimator: Estimator
) -> FleetEstimate:
    """Load is shared among the replicas of a model as routing by predicted latency does: more goes where there is more
    headroom. An overloaded unit serves the same share of each of its models' loads.
    """
    return estimate_with(make_instance(units, models, estimator), units, plan)


def estimate_models_with(instance: Instance, units: Sequence[UnitCapacity], plan: Plan) -> tuple[ModelEstimate, ...]:
    """Returns `estimate_with`'s models alone, in the instance's order: of a large fleet the rest takes longest."""
    replica_table = _ReplicaTable(instance, units, plan)
    return tuple(replica_table.model_estimates(replica_table.balance()))


def estimate_shortfall_with(
    instance: Instance, units: Sequence[UnitCapacity], plan: Plan
) -> tuple[tuple[ModelEstimate, ...], tuple[UnitEstimate, ...]]:
    """Returns `estimate_with`'s models, and those of its units that have one which is not wholly served."""
    replica_table = _ReplicaTable(instance, units, plan)
    factors = replica_table.balance()
    models = tuple(replica_table.model_estimates(factors))
    short = [number for number, m in enumerate(models) if m.served_share < 1.0]
    of_short = set(replica_table.unit[np.isin(replica_table.model, short)].tolist())
    return models, tuple(replica_table.unit_estimates(factors, of_short))


def estimate_with(instance: Instance, units: Sequence[UnitCapacity], plan: Plan) -> FleetEstimate:
    """`estimate` for many plans of one instance."""
    replica_table = _ReplicaTable(instance, units, plan)
    factors = replica_table.balance()
    return FleetEstimate(
        units=tuple(replica_table.unit_estimates(factors, range(len(units)))),
        models=tuple(replica_table.model_estimates(factors)),
        gpus_used=sum(u.num_gpus for i, u in enumerate(units) if (replica_table.unit == i).any()),
    )


class _ReplicaTable:
    """One row per replica."""

    def __init__(self, instance: Instance, units: Sequence[UnitCapacity], plan: Plan) -> None:
        self._instance = instance
        self._units = units
        numbers = {u.unit_id: i for i, u in enumerate(units)}
        rows = [
            (numbers[u.unit_id], instance.index[p.model])
            for u in plan.units
            for p in u.models
            if u.unit_id in numbers and p.model in instance.index
        ]
        table = np.array(rows, dtype=np.intp).reshape(-1, 2)
        self.unit, self.model = table[:, 0], table[:, 1]
        self._kind = np.array([instance.kinds.index(UnitKind.of(u)) for u in units], dtype=np.intp)
        self._demand = np.array([m.demand.rate_per_s for m in instance.models])
        replicas = np.bincount(self.model, minlength=len(instance.models))
        self.rate = self._demand[self.model] / np.maximum(1, replicas[self.model])

    def balance(self) -> Floats:
        """Factors of the units once loads are shared."""
        factors = self._factors()
        for _ in range(_BALANCING_ROUNDS):
            pull = pull_of(self.rate, factors[self.unit])
            total = np.bincount(self.model, weights=pull, minlength=len(self._demand))
            shares = np.divide(pull, total[self.model], out=np.zeros_like(pull), where=total[self.model] > 0)
            self.rate = self._demand[self.model] * shares
            factors = self._factors()
        return factors

    def unit_estimates(self, factors: Floats, numbers: Collection[int]) -> Iterator[UnitEstimate]:
        sums, minima = self._totals()
        for number in sorted(numbers):
            unit = self._units[number]
            costs = self._instance.costs[int(self._kind[number])]
            mine = minima[number, : SLACK + costs.num_ways]
            way, limits = costs.limits(sums[number], mine)
            served = min(1.0, float(factors[number]))
            held = np.flatnonzero(self.unit == number)
            strain = min(1.0, float(factors[number]) / max(1e-9, min(limits.values())))
            round_s = costs.round_s(sums[number], mine, way)
            yield UnitEstimate(
                unit_id=unit.unit_id,
                replicas=tuple(
                    ReplicaEstimate(
                        model=self._instance.models[self.model[row]].model,
                        rate_per_s=float(self.rate[row]),
                        served_per_s=float(self.rate[row]) * served,
                    )
                    for row in held
                ),
                headroom=float(factors[number]),
                limit=min(limits, key=lambda limit: limits[limit]),
                decode_sms=int(costs.decode_sms[way]),
                tbt_s=round_s if np.isfinite(round_s) else None,  # JSON, which it crosses as, has no infinity
                kv_share=_kv_share(sums[number], round_s, float(costs.pool_beside(sums[number]))),
                weights_share=float(sums[number, BYTES] / costs.memory_bytes) if costs.memory_bytes > 0 else 1.0,
                prefill_share=float(sums[number, PREFILL] * costs.prefill_dilation[way]),
                lane_headroom=min(f for limit, f in limits.items() if limit is not Limit.TTFT) * strain,
                queue=self._queue(sums[number], costs, way, held, strain),
            )

    def _queue(
        self, sums: Floats, costs: KindCosts, way: int, held: npt.NDArray[np.intp], strain: float
    ) -> PrefillQueue | None:
        """Prompts take longer while something is decoded beside them, which where few tokens follow is seldom.
        `strain`: what neighbours leave of the unit, which is longer prompts to it.
        """
        if sums[PREFILL] <= 0 or strain <= 0:
            return None
        models = self.model[held]
        step_s = (costs.decode_s[models] + costs.decode_s_per_sequence[models]) * costs.decode_dilation[way]
        decoding = float(-np.expm1(-(self.rate[held] @ (costs.output_tokens[models] * step_s))))
        worst = float(costs.prefill_dilation[way])
        dilation = 1.0 + (worst - 1.0) * decoding
        spared_s = costs.prefill_s[models] * (worst - dilation)
        return PrefillQueue(
            busy=float(sums[PREFILL]) * dilation / strain,
            work_s=float(sums[PREFILL_SQUARE] / sums[PREFILL]) * dilation / strain,
            slack_s={
                self._instance.models[model].model: float(costs.slack_s[model, way] + spared)
                for model, spared in zip(models, spared_s, strict=True)
            },
        )

    def model_estimates(self, factors: Floats) -> Iterator[ModelEstimate]:
        count = len(self._instance.models)
        served = np.bincount(self.model, weights=self.rate * np.minimum(1.0, factors[self.unit]), minlength=count)
        replicas = np.bincount(self.model, minlength=count)
        for number, model in enumerate(self._instance.models):
            meets_slo = number not in self._instance.hopeless
            yield ModelEstimate(
                model=model.model,
                rate_per_s=model.demand.rate_per_s,
                served_per_s=float(served[number]) if meets_slo else 0.0,
                replicas=int(replicas[number]),
                meets_slo=meets_slo,
            )

    def _factors(self) -> Floats:
        sums, minima = self._totals()
        factors = np.full(len(self._units), LARGEST_FACTOR)
        for kind, costs in enumerate(self._instance.costs):
            units = np.flatnonzero(self._kind == kind)
            factors[units] = costs.factor(sums[units], minima[units, : SLACK + costs.num_ways])
            factors[units[~costs.holds(sums[units])]] = 0.0
        return strained(factors, self._strains()) if self._instance.strains else factors

    def _strains(self) -> Floats:
        parts: list[dict[int, float]] = [{} for _ in self._units]
        for row in np.flatnonzero(np.isin(self.model, list(self._instance.strained_models))):
            parts[self.unit[row]][int(self.model[row])] = float(self.rate[row])
        return np.array([strain_of(of_unit, self._instance.strains) for of_unit in parts])

    def _totals(self) -> tuple[Floats, Floats]:
        ways = max((c.num_ways for c in self._instance.costs), default=0)
        sums = np.zeros((len(self._units), NUM_SUMS))
        minima = np.full((len(self._units), SLACK + ways), 1e12)
        minima[:, 1:SLACK] = 0.0
        for kind, costs in enumerate(self._instance.costs):
            rows: npt.NDArray[np.intp] = np.flatnonzero(self._kind[self.unit] == kind)
            if len(rows):
                np.add.at(sums, self.unit[rows], costs.sums(self.model[rows], self.rate[rows]))
                lowest = minima[:, : SLACK + costs.num_ways]
                np.minimum.at(lowest, self.unit[rows], costs.minima(self.model[rows], self.rate[rows]))
        return sums, minima


def _kv_share(sums: Floats, round_s: float, pool_blocks: float) -> float:
    """Blocks that sequences hold at once, of the pool."""
    if pool_blocks <= 0 or not np.isfinite(round_s):
        return 1.0
    return float(min(1.0, sums[KV] * round_s / pool_blocks))


# Beyond some headroom more of it attracts no more load: otherwise idle units would take all.
_LEAST, _MOST = 1e-3, 3.0
_STEEPNESS = 0.7


def pull_of(rates_per_s: Floats, headroom: Floats) -> Floats:
    """Returns what replicas attract, in proportion, that have this load on units with this headroom; it settles in
    rounds.
    """
    pull: Floats = rates_per_s * np.clip(headroom, _LEAST, _MOST) ** _STEEPNESS
    return pull
