"""Other ways to say how many nodes there shall be, in the place of the planner's answer: all else is the product's.

Each is asked when the control loop asks its planner, and its answers pass the same cooldown, steps and bounds.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from deploy.control.planner import PlanAnswer, PlannerInPlace, PlanTask
from deploy.simulation.units import SimulatedUnit
from placement.estimation.problem_arrays import Estimator
from placement.problem import PlacementModel, Solver
from placement.scaling.elastic_pool import FleetSize
from placement.scaling.size_question import FleetSizeQuestion

_TARGET_USE = 0.7  # of a unit's KV pool, as HPA rules for vLLM have it
_TARGET_WAITING = 2.0  # requests in each unit's queues
_INTERVAL_S = 60.0  # Dynamo's planner adjusts as often
_INTERVALS = 5

Rates = Callable[[float, float], Mapping[str, float]]
"""The highest rate of each model from one time to another."""


class Sizer(PlannerInPlace):
    """Plans as the product does; the size is another's."""

    def __init__(self, solver: Solver, estimator: Estimator) -> None:
        super().__init__(solver, estimator)
        self.solver, self.estimator = solver, estimator
        self._size: FleetSize | None = None

    def ask(self, task: PlanTask) -> None:
        self._size = None if task.size is None else self.sized(task.size)
        super().ask(replace(task, size=None))

    def answer(self) -> PlanAnswer | None:
        answer = super().answer()
        return answer if answer is None or self._size is None else replace(answer, size=self._size)

    def sized(self, question: FleetSizeQuestion) -> FleetSize:
        raise NotImplementedError


def _found(question: FleetSizeQuestion, nodes: int) -> FleetSize:
    (pool,) = question.pools
    size = min(max(nodes, pool.least_nodes), pool.most_nodes)
    return FleetSize(nodes={pool.name: size}, attainment=1.0, cost_per_hour=0.0, is_enough=True)


class MetricScaler(Sizer):
    """HPA's rule on two metrics, the larger answer counts: nodes times metric over target, as they are now."""

    def __init__(self, solver: Solver, estimator: Estimator, units: Sequence[SimulatedUnit]) -> None:
        super().__init__(solver, estimator)
        self._units = units

    def sized(self, question: FleetSizeQuestion) -> FleetSize:
        (pool,) = question.pools
        present = {unit.unit_id for node in pool.nodes for unit in node}
        loads = [u.load_report() for u in self._units if u.identity.unit_id in present]
        use = sum(1 - (load.free_blocks + load.cached_blocks) / load.total_blocks for load in loads) / _TARGET_USE
        waiting = sum(m.waiting for load in loads for m in load.models) / _TARGET_WAITING
        return _found(question, math.ceil(max(use, waiting)))


class PredictiveScaler(Sizer):
    """Like Dynamo's planner: a line through the rates of the last intervals, an interval ahead, over what one node is
    known to bear.
    """

    def __init__(self, solver: Solver, estimator: Estimator, now: Callable[[], float]) -> None:
        super().__init__(solver, estimator)
        self._now = now
        self._rates: deque[float] = deque(maxlen=_INTERVALS)
        self._looked_s = -math.inf
        self._nodes = 1

    def sized(self, question: FleetSizeQuestion) -> FleetSize:
        if self._now() - self._looked_s >= _INTERVAL_S:
            self._looked_s = self._now()
            self._rates.append(_total(question.models))
            self._nodes = math.ceil(self._next() / self._node_bears(question))
        return _found(question, self._nodes)

    def _next(self) -> float:
        rates = list(self._rates)
        if len(rates) < 3:
            return rates[-1]
        middle, mean = (len(rates) - 1) / 2, sum(rates) / len(rates)
        slope = sum((i - middle) * r for i, r in enumerate(rates)) / sum((i - middle) ** 2 for i in range(len(rates)))
        return max(0.0, mean + slope * (len(rates) - middle))

    def _node_bears(self, question: FleetSizeQuestion) -> float:
        """Requests per second of the mix of now with which one node keeps the target, by the same estimate as ours."""
        (pool,) = question.pools
        one = replace(question, pools=(replace(pool, nodes=pool.nodes[:1], least_nodes=1, most_nodes=1),))
        low, high = 0.0, 4.0 * max(1.0, _total(question.models))
        for _ in range(8):
            middle = (low + high) / 2
            tried = replace(one, models=scaled(question.models, middle / max(1e-9, _total(question.models))))
            enough = tried.answer(self.solver, self.estimator, lambda: False).is_enough
            low, high = (middle, high) if enough else (low, middle)
        return max(low, 1e-6)


class Oracle(Sizer):
    """Asks the planner, as ours does, for the highest demand until a node that is asked for now would serve."""

    def __init__(
        self, solver: Solver, estimator: Estimator, now: Callable[[], float], rates: Rates, ahead_s: float
    ) -> None:
        super().__init__(solver, estimator)
        self._now, self._rates, self._ahead_s = now, rates, ahead_s

    def sized(self, question: FleetSizeQuestion) -> FleetSize:
        rates = self._rates(self._now(), self._now() + self._ahead_s)
        models = tuple(replace(m, demand=replace(m.demand, rate_per_s=rates[m.model])) for m in question.models)
        return replace(question, models=models).answer(self.solver, self.estimator, lambda: False)


def scaled(models: Sequence[PlacementModel], factor: float) -> tuple[PlacementModel, ...]:
    return tuple(replace(m, demand=replace(m.demand, rate_per_s=m.demand.rate_per_s * factor)) for m in models)


def _total(models: Sequence[PlacementModel]) -> float:
    return sum(m.demand.rate_per_s for m in models)
