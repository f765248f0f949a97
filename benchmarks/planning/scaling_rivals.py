"""Other ways to say how many nodes there shall be, in the place of the planner's answer: all else is the product's.

Each is asked when the control loop asks its planner, and its answers pass the same cooldown, steps and bounds.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from deploy.control.planner import PlanAnswer, PlannerInPlace, PlanTask
from deploy.simulation.event_queue import EventQueue
from deploy.simulation.streams import RequestStream
from deploy.simulation.units import SimulatedUnit
from placement.estimation.problem_arrays import Estimator
from placement.problem import PlacementModel, Solver
from placement.scaling.elastic_pool import FleetSize
from placement.scaling.fleet_size import FleetSizeQuestion

_INTERVAL_S = 60.0  # Dynamo's planner adjusts as often
_INTERVALS = 5
_BIN_S = 10.0


class Known:
    """What rivals may look at: the clock, the units, and the arrivals that only the oracle knows."""

    def __init__(self, stream: RequestStream) -> None:
        self.agenda: EventQueue | None = None
        self.units: Sequence[SimulatedUnit] = ()
        self._counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for record in stream.records():
            self._counts[str(record.model)][int(record.arrival_s // _BIN_S)] += 1

    def now(self) -> float:
        assert self.agenda is not None, "units are built first"
        return self.agenda.clock.now_s

    def highest_rates(self, from_s: float, to_s: float, over_s: float) -> Mapping[str, float]:
        """The highest mean of each model over any `over_s` of the time."""
        spans, width = range(int(from_s // _BIN_S), int(to_s // _BIN_S) + 1), max(1, int(over_s // _BIN_S))
        starts = range(spans.start, max(spans.start + 1, spans.stop - width + 1))
        return {
            m: max(sum(counts[i] for i in range(s, s + width)) for s in starts) / width / _BIN_S
            for m, counts in self._counts.items()
        }


@dataclass(frozen=True, slots=True)
class Seen:
    """What metrics say of the units that are there, in all."""

    running: int
    waiting: int
    kv_use: float
    nodes: int


class Sizer(PlannerInPlace, ABC):
    """Plans as the product does; the size is another's."""

    def __init__(self, solver: Solver, estimator: Estimator, known: Known) -> None:
        super().__init__(solver, estimator)
        self.solver, self.estimator, self.known = solver, estimator, known
        self._size: FleetSize | None = None

    def ask(self, task: PlanTask) -> None:
        self._size = None if task.size is None else self.sized(task.size)
        super().ask(replace(task, size=None))

    def answer(self) -> PlanAnswer | None:
        answer = super().answer()
        return answer if answer is None or self._size is None else replace(answer, size=self._size)

    @abstractmethod
    def sized(self, question: FleetSizeQuestion) -> FleetSize: ...

    def seen(self, question: FleetSizeQuestion) -> Seen:
        (pool,) = question.pools
        present = {unit.unit_id for node in pool.nodes for unit in node}
        loads = [u.load_report() for u in self.known.units if u.identity.unit_id in present]
        return Seen(
            running=sum(m.running for load in loads for m in load.models),
            waiting=sum(m.waiting for load in loads for m in load.models),
            kv_use=sum(1 - (load.free_blocks + load.cached_blocks) / load.total_blocks for load in loads),
            nodes=len(pool.nodes),
        )


def _found(question: FleetSizeQuestion, nodes: int) -> FleetSize:
    (pool,) = question.pools
    size = min(max(nodes, pool.least_nodes), pool.most_nodes)
    return FleetSize(nodes={pool.name: size}, attainment=1.0, cost_per_hour=0.0, is_enough=True)


class HpaOnKv(Sizer):
    """HPA's rule on the use of KV pools: nodes times metric over target, unless within a tenth of it."""

    target = 0.7

    def sized(self, question: FleetSizeQuestion) -> FleetSize:
        seen = self.seen(question)
        ratio = seen.kv_use / max(1, seen.nodes) / self.target
        return _found(question, seen.nodes if abs(ratio - 1) <= 0.1 else math.ceil(seen.nodes * ratio))


class CarefulHpaOnKv(HpaOnKv):
    target = 0.1


class RequestSizer(Sizer):
    """Looks at the requests that run or wait, back to `look_back_s` ago; a node shall have `target` of them."""

    target: float
    look_back_s: float

    def __init__(self, solver: Solver, estimator: Estimator, known: Known) -> None:
        super().__init__(solver, estimator, known)
        self._told: deque[tuple[float, int]] = deque()

    def note(self, seen: Seen, now_s: float) -> None:
        self._told.append((now_s, seen.running + seen.waiting))
        while now_s - self._told[0][0] > self.look_back_s:
            self._told.popleft()

    def nodes_for(self, since_s: float) -> int:
        counts = [count for at_s, count in self._told if at_s >= since_s]
        return math.ceil(sum(counts) / len(counts) / self.target)


class KpaOnQueue(RequestSizer):
    """Knative's rule, as AIBrix has it: the mean of a minute; of 6 s where that asks for twice what is there, and then
    for a minute never fewer.
    """

    target, look_back_s = 4.0, 60.0

    def __init__(self, solver: Solver, estimator: Estimator, known: Known) -> None:
        super().__init__(solver, estimator, known)
        self._panic_until_s, self._panic_nodes = -math.inf, 0

    def sized(self, question: FleetSizeQuestion) -> FleetSize:
        seen, now_s = self.seen(question), self.known.now()
        self.note(seen, now_s)
        stable, panic = (self.nodes_for(now_s - span_s) for span_s in (self.look_back_s, 6.0))
        if panic >= 2 * seen.nodes:
            self._panic_until_s = now_s + 60.0
        if now_s < self._panic_until_s:
            self._panic_nodes = max(self._panic_nodes, panic)
            return _found(question, self._panic_nodes)
        self._panic_nodes = 0
        return _found(question, stable)


class CarefulKpa(KpaOnQueue):
    target = 1.0


class ServeOnRequests(RequestSizer):
    """Ray Serve's own: `target_ongoing_requests` of 2, over its `look_back_period_s`. Its delays are left out: what
    they hold back would come later still.
    """

    target, look_back_s = 2.0, 30.0

    def sized(self, question: FleetSizeQuestion) -> FleetSize:
        now_s = self.known.now()
        self.note(self.seen(question), now_s)
        return _found(question, self.nodes_for(now_s - self.look_back_s))


class CarefulServe(ServeOnRequests):
    target = 1.0


class PredictiveScaler(Sizer):
    """Like Dynamo's planner: a line through the rates of the last intervals, an interval ahead, over what one node is
    known to bear.
    """

    spare = 1.0

    def __init__(self, solver: Solver, estimator: Estimator, known: Known) -> None:
        super().__init__(solver, estimator, known)
        self._rates: deque[float] = deque(maxlen=_INTERVALS)
        self._looked_s = -math.inf
        self._nodes = 1

    def sized(self, question: FleetSizeQuestion) -> FleetSize:
        if self.known.now() - self._looked_s >= _INTERVAL_S:
            self._looked_s = self.known.now()
            self._rates.append(_total(question.models))
            self._nodes = math.ceil(self.spare * self._next() / self._node_bears(question))
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
            factor = middle / max(1e-9, _total(question.models))
            tried = replace(one, models=tuple(m.times(factor) for m in question.models))
            enough = tried.answer(self.solver, self.estimator, lambda: False).is_enough
            low, high = (middle, high) if enough else (low, middle)
        return max(low, 1e-6)


class CarefulPredictive(PredictiveScaler):
    spare = 1.3


class Oracle(Sizer):
    """Asks the planner, as ours does, for the highest demand until a node that is asked for now would serve: it knows
    that, so there is nothing uncertain about it.
    """

    ahead_s = 45.0
    over_s = 30.0

    def sized(self, question: FleetSizeQuestion) -> FleetSize:
        now_s = self.known.now()
        rates = self.known.highest_rates(now_s, now_s + self.ahead_s, self.over_s)
        models = tuple(m.at_rate(rates[m.model]) for m in question.models)
        limits = replace(question.limits, uncertainty=0.0)
        asked = replace(question, models=models, limits=limits)
        return asked.answer(self.solver, self.estimator, lambda: False)


def _total(models: Sequence[PlacementModel]) -> float:
    return sum(m.demand.rate_per_s for m in models)


MakeSizer = Callable[[Solver, Estimator, Known], PlannerInPlace]

RIVALS: Mapping[str, MakeSizer] = {
    "Dynamo-like": PredictiveScaler,
    "Dynamo-like, 30 % spare": CarefulPredictive,
    "HPA on KV, 70 %": HpaOnKv,
    "HPA on KV, 10 %": CarefulHpaOnKv,
    "KPA on requests, 4": KpaOnQueue,
    "KPA on requests, 1": CarefulKpa,
    "Serve on requests, 2": ServeOnRequests,
    "Serve on requests, 1": CarefulServe,
    "oracle": Oracle,
}
