"""AlpaServe's planner (OSDI'23): groups of GPUs as pipelines, filled greedily by what a simulation says.

Algorithm 2 tries groups of every size, of every number of stages, the same for all; Algorithm 1 fills each, here by
the paper's fast heuristic instead of trying every pair: the model with the most requests missed goes to the group that
has least to do and room for it, until all requests are in time or nothing fits. Best is what has most in time.

Estimates know tensor parallelism only. A pipeline is modelled on them in the simplest way: latency is the sum of the
stages, throughput that of the slowest (pipeline_simulation.py); a stage has its part of the layers, rounded up. A plan
cannot say that a unit is a pipeline, so units, and simulations of the plan, run a group as one tensor-parallel mesh:
what is AlpaServe's of it are sizes, replicas and who shares. Not done: buckets of models of like latency with GPUs of
their own, and groups across nodes. Models below `replicas.min` go first, which the paper does not know.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from placement.estimation.pipeline_simulation import Arrival, BatchTime, PipelineOutcome, run_pipelines
from placement.estimation.problem_arrays import Estimator, Instance, make_instance
from placement.nodes import FleetPlan, NodePool
from placement.packing.layout import plan_of_packing
from placement.packing.packing import Packing, Snapshot
from placement.plan import Plan, UnitCapacity
from placement.problem import PlacementModel
from placement.solvers.entry import IsTimeUp, SolverEntry

_SLO_SCALE = 5.0  # the paper's: a request may take so many times what it takes alone
_HORIZON = 4.0  # longest deadlines, for queues to grow
_STAGES = (1, 2, 4, 8)
_RULE = "solver alpaserve places what brings most requests in time in its simulation; use solver search"
_RULE_CUT_SHORT = (
    "solver alpaserve ran out of time: the required replicas went to the groups with least to do, without its "
    "simulation; give it more with --time-budget, or use solver search"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlpaServeSolver:
    """`most_requests`: of each simulation. `is_time_up` ends the search with the best so far; replicas that models must
    have are placed all the same.
    """

    estimator: Estimator = field(default_factory=Estimator)
    is_time_up: IsTimeUp = lambda: False
    most_requests: int = 10_000

    def solve(self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], current: Plan | None) -> Plan:
        """The groups are given, not their stages. `current` is not looked at."""
        return self._best([sorted(units, key=lambda u: u.unit_id)], models).plan

    def lay_out(self, pools: Sequence[NodePool], models: Sequence[PlacementModel]) -> FleetPlan:
        sizes = sorted({size for pool in pools for size in pool.sizes()})
        return self._best([_groups_of(pools, size) for size in sizes] or [[]], models)

    def _best(self, partitions: Sequence[Sequence[UnitCapacity]], models: Sequence[PlacementModel]) -> FleetPlan:
        best: tuple[tuple[int, int], FleetPlan] | None = None
        fillings = [
            _Filling(units, models, stages, self.estimator)
            for units in partitions
            for stages in (s for s in _STAGES if s <= max([1, *(u.num_gpus for u in units)]))
        ]
        alone_s = [min([f.alone_s[m] for f in fillings if m in f.alone_s], default=0.0) for m in range(len(models))]
        deadlines_s = {model: _SLO_SCALE * seconds for model, seconds in enumerate(alone_s)}
        for filling in fillings:
            if best is not None and best[0][0] == 0 and self.is_time_up():
                break
            merit = filling.fill(deadlines_s, self)
            if best is None or merit > best[0]:
                rule = _RULE_CUT_SHORT if filling.is_cut_short else _RULE
                plan = plan_of_packing(filling.packing, dict(enumerate(filling.units)), rule=rule)
                best = merit, FleetPlan(units=tuple(filling.units), plan=plan)
        assert best is not None, "there is a partition, and one stage"
        return best[1]


def _make(estimator: Estimator, is_time_up: IsTimeUp) -> AlpaServeSolver:
    return AlpaServeSolver(estimator=estimator, is_time_up=is_time_up)


SOLVER = SolverEntry(
    name="alpaserve",
    rule="AlpaServe's planner: groups of one size, pipelines of one length, filled by what a simulation of requests in "
    "time says; plans do not carry the pipelines (`--solver` only)",
    make=_make,
    make_for_nodes=_make,
    online=False,
)


def _groups_of(pools: Sequence[NodePool], size: int) -> list[UnitCapacity]:
    """Of as many GPUs, where a node has so many; what does not divide stays idle."""
    return [
        pool.unit(node, first_gpu, size)
        for pool in pools
        if size in pool.sizes()
        for node in range(pool.num_nodes)
        for first_gpu in range(0, pool.gpus_per_node - size + 1, size)
    ]


def _stage_of(unit: UnitCapacity, stages: int) -> UnitCapacity:
    """One stage of a group; small groups have as many stages as GPUs."""
    parts = min(stages, unit.num_gpus)
    return replace(
        unit,
        num_gpus=unit.num_gpus // parts,
        memory_bytes=unit.memory_bytes // parts,
        total_blocks=unit.total_blocks // parts,
    )


class _Filling:
    """Groups of one partition being filled."""

    def __init__(
        self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], stages: int, estimator: Estimator
    ) -> None:
        self.units = units
        stage_units = [_stage_of(unit, stages) for unit in units]
        self._instance = make_instance([*units, *stage_units], models, estimator)
        self.packing = Packing.of_units(self._instance, units)
        self._stages = [min(stages, unit.num_gpus) for unit in units]
        kinds = [
            (self._instance.kind_of(u), self._instance.kind_of(s)) for u, s in zip(units, stage_units, strict=True)
        ]
        self._times = [
            self._batch_times(group, stage, parts) for (group, stage), parts in zip(kinds, self._stages, strict=True)
        ]
        # What a request of each model that runs here takes alone, at best.
        self.alone_s = {m: min([t[m].seconds(1) for t in self._times if m in t]) for m in {*chain(*self._times)}}
        self._deadlines_s: Mapping[int, float] = {}
        self._arrivals: Sequence[Arrival] = ()
        self.is_cut_short = False

    def fill(self, deadlines_s: Mapping[int, float], solver: AlpaServeSolver) -> tuple[int, int]:
        """Returns how good the best filling is, which the packing then has: replicas missing, negative, and requests in
        time. All partitions have the same deadlines: slow groups would be given more time, and more requests to count.
        """
        self._deadlines_s = deadlines_s
        self._arrivals = _arrivals(self._instance, deadlines_s, solver.most_requests)
        best: tuple[tuple[int, int], Snapshot] | None = None
        while True:
            outcome = self._simulated()
            merit = (-self._missing(), sum(outcome.in_time.values()))
            if best is None or merit > best[0]:
                best = merit, self.packing.snapshot()
            self.is_cut_short = solver.is_time_up()
            if merit == (0, len(self._arrivals)) or self.is_cut_short or not self._add_replica(outcome):
                break
        self.packing.restore(best[1])
        if not self.is_cut_short or self._missing() == 0:
            return best[0]
        self._place_required()
        return -self._missing(), best[0][1]

    def _place_required(self) -> None:
        """The largest first, without a simulation: what is busy is summed."""
        models = self._instance.models
        for model in sorted(range(len(models)), key=lambda m: (-models[m].spec.weight_bytes, m)):
            wanted = models[model].min_replicas
            while len(self.packing.homes[model]) < wanted and self._put_on_idlest(model, self._summed_load()):
                pass

    def _summed_load(self) -> list[float]:
        """Returns the share of its time that each group works on single requests."""
        return [
            sum(rate * times[model].seconds(1) for model, rate in self.packing.parts[unit].items()) / stages
            for unit, (times, stages) in enumerate(zip(self._times, self._stages, strict=True))
        ]

    def _missing(self) -> int:
        """Counts those of models that no group here holds, too: groups of another size may."""
        wanted = zip(self._instance.models, self.packing.homes, strict=True)
        return sum(max(0, model.min_replicas - len(homes)) for model, homes in wanted)

    def _simulated(self) -> PipelineOutcome:
        held = [{model: times[model] for model in self.packing.parts[unit]} for unit, times in enumerate(self._times)]
        return run_pipelines(held, self._arrivals, self._deadlines_s, stages=self._stages)

    def _add_replica(self, outcome: PipelineOutcome) -> bool:
        """Returns whether any fitted."""
        homes, models = self.packing.homes, self._instance.models
        wanted = [
            (len(homes[m]) >= model.min_replicas, -outcome.missed.get(m, 0), m)
            for m, model in enumerate(models)
            if len(homes[m]) < model.max_replicas
            and (outcome.missed.get(m, 0) > 0 or len(homes[m]) < model.min_replicas)
        ]
        load = [busy_s / stages for busy_s, stages in zip(outcome.busy_s, self._stages, strict=True)]
        return any(self._put_on_idlest(model, load) for _, _, model in sorted(wanted))

    def _put_on_idlest(self, model: int, load: Sequence[float]) -> bool:
        """Returns whether it fitted anywhere."""
        rate_per_s = float(self._instance.rates_per_s[model])
        for unit in sorted(range(len(load)), key=lambda u: (load[u], u)):
            parts = self.packing.parts[unit]
            fits = model not in parts and model in self._times[unit]
            if fits and self.packing.factor_of(unit, {**parts, model: rate_per_s}) >= 0:
                self.packing.put(unit, model, rate_per_s)
                self._spread(model)
                return True
        return False

    def _spread(self, model: int) -> None:
        """Replicas share the demand, for the quotas of the plan."""
        homes = sorted(self.packing.homes[model])
        for unit in homes:
            self.packing.set_rate(unit, model, float(self._instance.rates_per_s[model]) / len(homes))

    def _batch_times(self, group: int, stage: int, stages: int) -> Mapping[int, BatchTime]:
        """Of each model that both the group and one of its stages can run."""
        whole, part = self._instance.costs[group], self._instance.costs[stage]
        times = {}
        for model in map(int, np.flatnonzero(whole.runs & part.runs)):
            layers = self._instance.models[model].spec.num_layers
            slowest = stages * -(-layers // stages) / layers
            output_tokens, blocks = part.output_tokens[model], max(1.0, whole.blocks_per_sequence[model])
            free_blocks = whole.pool_blocks - whole.blocks_per_byte * whole.resident_bytes[model]
            times[model] = BatchTime(
                fixed_s=float(slowest * output_tokens * part.decode_s[model]),
                per_request_s=float(
                    slowest * (part.prefill_s[model] + output_tokens * part.decode_s_per_sequence[model])
                ),
                most_requests=int(max(1, min(whole.max_running, free_blocks / stages / blocks))),
            )
        return times


def _arrivals(instance: Instance, deadlines_s: Mapping[int, float], most_requests: int) -> list[Arrival]:
    """Poisson's, always the same ones."""
    rates_per_s = instance.rates_per_s
    demand_per_s = float(rates_per_s.sum())
    if demand_per_s <= 0:
        return []
    longest_s = max(deadlines_s[m] for m in range(len(rates_per_s)) if rates_per_s[m] > 0)
    requests = int(min(most_requests, max(100, _HORIZON * longest_s * demand_per_s)))
    draw = np.random.default_rng(0)
    times_s = np.cumsum(draw.exponential(1 / demand_per_s, requests))
    models = draw.choice(len(rates_per_s), size=requests, p=rates_per_s / demand_per_s)
    return list(zip(times_s.tolist(), models.tolist(), strict=True))
