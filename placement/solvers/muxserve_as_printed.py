"""MuxServe's placement with nothing of ours in it: Algorithm 1 line by line, over Eq. 1 to 3 and Algorithm 2.

`muxserve` is the same greedy with our estimate (continuous batches, SLOs, SMs that are shared) and three rules of ours:
the share of demand that is served decides between groups of meshes, not the sum of F; of meshes where F grows by as
much the one with the fewest SMs spoken for is taken, not the first; and computation is GPU time, not the LLM's scale
times its rate. Where the print is silent: mesh groups are all multisets of sizes within nodes, without pruning; and a
group that leaves an LLM without a mesh is worse than any that does not, since Eq. 1 groups all LLMs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from placement.estimation.problem_arrays import Estimator, Instance, make_instance
from placement.estimation.step_costs import corrected, step_costs
from placement.estimation.throughput import Floats
from placement.nodes import FleetPlan, NodePool, openings_of
from placement.packing.layout import carve, plan_of_packing
from placement.packing.packing import Packing
from placement.plan import Plan, UnitCapacity
from placement.problem import PlacementModel
from placement.solvers.entry import IsTimeUp, SolverEntry
from placement.solvers.muxserve import mesh_groups

_RULE = "solver muxserve_as_printed places one replica of each model, where F grows; use solver search"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedMuxServeSolver:
    """`is_time_up` ends the enumeration of mesh groups early."""

    estimator: Estimator = field(default_factory=Estimator)
    is_time_up: IsTimeUp = lambda: False

    def solve(self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], current: Plan | None) -> Plan:
        """The meshes are given: one mesh group. `current` is not looked at."""
        ordered = sorted(units, key=lambda u: u.unit_id)
        instance = make_instance(ordered, models, self.estimator)
        packing = Packing.of_units(instance, ordered)
        _place(packing, PrintedThroughput(instance, self.estimator))
        return plan_of_packing(packing, dict(enumerate(ordered)), rule=_RULE)

    def lay_out(self, pools: Sequence[NodePool], models: Sequence[PlacementModel]) -> FleetPlan:
        shapes = openings_of(pools)
        instance = make_instance([unit for _, unit in shapes], models, self.estimator)
        kinds = {(pool, unit.num_gpus): instance.kind_of(unit) for pool, unit in shapes}
        throughput = PrintedThroughput(instance, self.estimator)
        best: tuple[int, float] | None = None
        best_packing = Packing.of_nodes(instance, pools)
        for meshes in mesh_groups(pools):
            packing = Packing.of_nodes(instance, pools)
            for pool, node, num_gpus in meshes:
                packing.open(kinds[pool, num_gpus], (pool, node))
            tpt = _place(packing, throughput)
            key = (packing.missing, -tpt)
            if best is None or key < best:
                best, best_packing = key, packing
            if self.is_time_up():
                break
        return carve(best_packing, pools, rule=_RULE)


def _make(estimator: Estimator, is_time_up: IsTimeUp) -> PrintedMuxServeSolver:
    return PrintedMuxServeSolver(estimator=estimator, is_time_up=is_time_up)


SOLVER = SolverEntry(
    name="muxserve_as_printed",
    rule="MuxServe's Algorithms 1 and 2 over its own estimate, Eq. 1 to 3, as printed: no SLOs, and decodes that share "
    "a mesh cost each other nothing (`--solver` only)",
    make=_make,
    make_for_nodes=_make,
    online=False,
)


_SM_SHARES = tuple(tenths / 10 for tenths in range(1, 11))
_LITTLE = 1e-12
_Decode = tuple[float, float]
"""Seconds of a step, and of each of its sequences."""


class PrintedThroughput:
    """F of the kinds and models of `instance`, by their numbers: Eq. 2 and 3, with the candidates of Algorithm 2, whose
    shares are `sm_shares` [kinds, models].

        tpt_m = min(b_m / (sum_i t_p^i + t_d^m l_o^m), W_m)     F(b, W) = max sum_m tpt_m, |R_i - R_j| <= epsilon

    t_p^i: the prefill of a batch of b_i prompts, on all SMs (the text does not say on how many); t_d^m: a decode step
    of b_m sequences on the SMs of m's candidate, the fewest with which m alone meets its load, or all of them. R are
    token blocks by request rate: with epsilon 0 blocks are shared out by rates, and since every tpt grows with a common
    factor on such batches, F has its maximum where all blocks are used. Decodes of other LLMs cost nothing, and nobody
    adds up the SMs of candidates: neither is in print. estimation/throughput.py has rounds in which all decode.
    """

    def __init__(self, instance: Instance, estimator: Estimator) -> None:
        self._instance = instance
        self._estimator = estimator
        shape = (len(instance.kinds), len(instance.models))
        self.sm_shares = np.ones(shape)
        self._decode = np.zeros((*shape, 2))
        self._known: dict[tuple[int, frozenset[int]], float] = {}
        for kind, costs in enumerate(instance.costs):
            for model in map(int, np.flatnonzero(costs.runs)):
                self._choose_candidate(kind, model)

    def of_unit(self, kind: int, models: Iterable[int]) -> float:
        """F of a unit of the kind that holds these models."""
        key = (kind, frozenset(models))
        if key not in self._known:
            self._known[key] = float(self.of_models(kind, np.array(sorted(key[1]), dtype=np.intp)).sum())
        return self._known[key]

    def of_models(self, kind: int, models: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Floats:
        """Throughput of each of a unit's models."""
        costs, rates_per_s = self._instance.costs[kind], self._instance.rates_per_s[models]
        demand_per_s = float(rates_per_s.sum())
        if demand_per_s <= 0:
            return np.zeros(len(models))
        blocks = max(0.0, costs.pool_blocks - costs.blocks_per_byte * float(costs.resident_bytes[models].sum()))
        batch = blocks * rates_per_s / demand_per_s / np.maximum(costs.blocks_per_sequence[models], _LITTLE)
        batch = np.minimum(batch, costs.max_running)
        decode_s = self._decode[kind, models, 0] + batch * self._decode[kind, models, 1]
        batch_s = float((batch * costs.prefill_s[models]).sum()) + costs.output_tokens[models] * decode_s
        return np.asarray(np.minimum(batch / np.maximum(batch_s, _LITTLE), rates_per_s))

    def _choose_candidate(self, kind: int, model: int) -> None:
        """Algorithm 2, for one degree of tensor parallelism."""
        alone = np.array([model], dtype=np.intp)
        for share in _SM_SHARES:
            self.sm_shares[kind, model] = share
            self._decode[kind, model] = self._decode_on(kind, model, share)
            if self.of_models(kind, alone)[0] >= self._instance.rates_per_s[model]:
                return

    def _decode_on(self, kind: int, model: int, share: float) -> _Decode:
        unit, placed = self._instance.kinds[kind], self._instance.models[model]
        if unit.device is None:
            return 0.0, 0.0
        costs = step_costs(
            placed.spec,
            placed.demand,
            self._estimator.latency_of(unit.device, unit.num_gpus),
            max(1, round(share * unit.device.num_sms)),
            host_s=self._estimator.host_s_of(unit.device),
            batch_tokens=unit.launch_limits.batch_tokens,
        )
        costs = corrected(costs, unit.correction, placed.correction)
        return costs.decode_s, costs.decode_s_per_sequence


def _place(packing: Packing, throughput: PrintedThroughput) -> float:
    """Lines 5 to 17: returns the sum of F."""
    instance = packing.instance
    meshes = packing.open_units()
    kind_of = {mesh: int(packing.kind[mesh]) for mesh in meshes}
    for model in _by_computation(instance):
        rate_per_s = float(instance.rates_per_s[model])
        fitting: set[int] = set()
        for kind in set(kind_of.values()):
            units, factors = packing.factors_with(model, rate_per_s, kind)
            fitting.update(units[factors >= 0].tolist())
        best_mesh, max_delta = None, -1.0
        for mesh in (m for m in meshes if m in fitting):
            held = packing.parts[mesh]
            with_model = throughput.of_unit(kind_of[mesh], (*held, model))
            delta = round(with_model - throughput.of_unit(kind_of[mesh], held), 9)
            if delta > max_delta:
                best_mesh, max_delta = mesh, delta
        if best_mesh is not None:
            packing.put(best_mesh, model, rate_per_s)
    return sum(throughput.of_unit(kind_of[mesh], packing.parts[mesh]) for mesh in meshes)


def _by_computation(instance: Instance) -> Sequence[int]:
    scale = np.array([m.spec.num_params for m in instance.models])
    return [int(m) for m in np.argsort(-scale * instance.rates_per_s, kind="stable")]
