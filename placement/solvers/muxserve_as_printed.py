"""MuxServe's placement with nothing of ours in it: Algorithm 1 line by line, over Eq. 1 to 3 and Algorithm 2.

`muxserve` is the same greedy with our estimate (continuous batches, SLOs, SMs that are shared) and three rules of ours:
the share of demand that is served decides between groups of meshes, not the sum of F; of meshes where F grows by as
much the one with the fewest SMs spoken for is taken, not the first; and computation is GPU time, not the LLM's scale
times its rate. Where the print is silent: mesh groups are all multisets of sizes within nodes, without pruning; and a
group that leaves an LLM without a mesh is worse than any that does not, since Eq. 1 groups all LLMs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from placement.estimation.printed_throughput import PrintedThroughput
from placement.estimation.problem_arrays import Estimator, Instance, make_instance
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
