"""Decides how many nodes each pool shall have, and which of them are emptied."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from deploy.control.decision_history import DecisionHistory
from deploy.control.demand_forecasts import DemandForecasts, at_least
from deploy.control.lead_time import LeadTime
from deploy.control.signal_reading import AttainmentDelta, signals_of
from deploy.control.unit_registry import KnownUnit
from deploy.control.usable_units import Fleet
from deploy.fleet_file.model_catalog import CatalogModel
from placement.plan import Plan
from placement.problem import PlacementModel
from placement.scaling.capacity_calibration import CapacityCalibration
from placement.scaling.demand_trend import DemandTrend
from placement.scaling.elastic_pool import Ceilings, ElasticPool, FleetSize, HeldNodes, SizeLimits
from placement.scaling.fleet_size import FleetSizeQuestion
from placement.scaling.leading_signals import LeadingSignals
from placement.scaling.pool_size import KeptSize, PoolSize, ScalingRules
from placement.scaling.seasonal_forecast import ExpectedRate
from placement.scaling.victims import PoolNode, cheapest_to_empty
from router.admission.demand_report import ModelAsked
from router.telemetry.fleet_event import EventKind

_GATHERING_S = 10.0  # so long a control loop that knows nothing of a size takes all nodes that it hears of for wanted
_ALARM_EVERY_S = 5.0  # a queue that is too long is looked at so often: each look takes a run of the planner


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledPool:
    rules: ScalingRules
    units_per_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """Nodes of a pool: `wanted`, those that are there, their units, and the units of those that leave. `emptied` ones
    of these hold nothing any more and may end. `predicted`: the share of requests in time at the size that was found
    last, None before there is one. `provision_s` and `load_s` are what a new node is taken to need, as measured so far.
    `bears`: what nodes are taken to bear, times the planner's estimate. `signals`: what told of too few nodes at the
    last look. `forecast_per_s`: requests per second, of all models, that are forecast at most until a node that is
    asked for now would serve; None where demand is not forecast, or not known to repeat yet.
    """

    pool: str
    least: int
    most: int
    wanted: int
    present: int
    units_per_node: int
    units: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()
    emptied: tuple[str, ...] = ()
    shadow: bool = False
    predicted: float | None = None
    cost_per_hour: float = 1.0
    provision_s: float = 0.0
    load_s: float = 0.0
    bears: float = 1.0
    signals: LeadingSignals = field(default_factory=LeadingSignals)
    forecast_per_s: float | None = None


class PoolScaling:
    """Sizes all pools together, since a model may be served by any. `epoch_s` returns what added to the control
    loop's clock is the time of day. A node is what `units_per_node` units of a pool are on: one machine may stand for
    several.
    """

    def __init__(self, fleet: Fleet, history: DecisionHistory, epoch_s: Callable[[], float]) -> None:
        self._fleet = fleet
        self._history = history
        self._epoch_s = epoch_s
        self._pools: Mapping[str, ScaledPool] = {}
        self._sizes: dict[str, PoolSize] = {}
        self._leads: dict[str, LeadTime] = {}
        self._kept: dict[str, KeptSize] = {}
        self._trend = DemandTrend()
        self.forecasts = DemandForecasts(epoch_s)
        self._forecast_per_s: float | None = None
        self._calibration = CapacityCalibration()
        self._delta = AttainmentDelta()
        self._signals = LeadingSignals()
        self._models: Sequence[PlacementModel] = ()
        self._lacked_s: dict[str, float] = {}  # pools without nodes: since when
        self._node_gpus: dict[str, int] = {}
        self._alarmed_s = float("-inf")
        self._steady: object = None
        self.ceilings = Ceilings()
        self.own_node: str | None = None
        """The machine that this runs on is not empty without units, so that nobody would take it away."""
        self._found: FleetSize | None = None
        self._began_s: float | None = None

    @property
    def is_elastic(self) -> bool:
        return any(p.rules.is_elastic for p in self._pools.values())

    def follow(self, pools: Mapping[str, ScaledPool]) -> None:
        """Keeps the sizes of pools that were there before, within the new bounds."""
        self._pools = pools
        self._fleet.registry.most_units = {p: s.rules.most_nodes * s.units_per_node for p, s in pools.items()}
        self._sizes = {p: s for p, s in self._sizes.items() if p in pools}
        for pool, size in self._sizes.items():
            size.under(pools[pool].rules)
        self._leads = {p: self._leads.get(p) or LeadTime(s.rules.provision_s) for p, s in pools.items()}
        self.forecasts.follow({p: s.rules.forecast for p, s in pools.items() if s.rules.forecast is not None})

    @property
    def lead_s(self) -> float:
        """Returns after how long a node that is asked for now would serve."""
        return max((self._leads[p].total_s for p, s in self._pools.items() if s.rules.is_elastic), default=0.0)

    def question(
        self,
        models: Sequence[PlacementModel],
        asked: Mapping[str, ModelAsked],
        expected: Mapping[str, ExpectedRate],
        now_s: float,
    ) -> FleetSizeQuestion | None:
        """`asked` sums what gateways count of each model; `expected` is forecast. None: no pool may change, or there is
        nothing yet that a node could be like. A pool without nodes is waited for as long as one takes to come.
        """
        if not self.is_elastic:
            return None
        self._models = models
        self._trend.note(models, now_s)
        self._learn(asked, now_s)
        nodes = {pool: self._capable(pool, now_s) for pool in self._pools}
        self._lacked_s = {p: self._lacked_s.get(p, now_s) for p, there in nodes.items() if not there}
        is_awaited = any(now_s - since_s < self._leads[p].total_s for p, since_s in self._lacked_s.items())
        there = sorted(nodes.keys() - self._lacked_s.keys())
        if is_awaited or not there or any(u.capacity.sizes_pool for u in self._fleet.registry):
            return None
        rules = [s.rules for s in self._pools.values() if s.rules.is_elastic]
        self._forecast_per_s = sum(e.rate_per_s for e in expected.values()) if expected else None
        foreseen = at_least(self._trend.ahead(models, self.lead_s), expected)
        return FleetSizeQuestion(
            pools=tuple(self._elastic(pool, nodes[pool]) for pool in there),
            models=self._calibrated(self._signals.pressed(foreseen)),
            limits=SizeLimits(
                target_attainment=max(r.target_attainment for r in rules),
                max_cost_per_hour=self.ceilings.max_cost_per_hour,
                max_gpus=self.ceilings.max_gpus,
            ),
        )

    def expected(self, models: Iterable[str], now_s: float) -> Mapping[str, ExpectedRate]:
        """Returns what is forecast of models until a node asked for now would serve."""
        return self.forecasts.all_expected(models, now_s, self.lead_s)

    def foreseen(self, models: Sequence[CatalogModel], now_s: float) -> frozenset[str]:
        """Returns the models that will be asked for, once or more in the time after which one falls asleep."""
        idle_s = {m.id: m.settings.replicas.idle_after_s for m in models}
        expected = self.expected(idle_s, now_s)
        return frozenset(m for m, e in expected.items() if e.rate_per_s * idle_s[m] >= 1.0)

    def alarm(self, asked: Callable[[], Mapping[str, ModelAsked]], now_s: float) -> str | None:
        """Says why the size should be looked at now, if it should: more waits than comes in a first token's time."""
        if not self.is_elastic or not self._models or now_s - self._alarmed_s < _ALARM_EVERY_S:
            return None
        self._alarmed_s = now_s
        self._read_signals(asked())
        late = [m.model for m in self._models if self._signals.excess(m) > 0]
        return f"requests for {', '.join(late)} wait too long" if late else None

    def hear(self, found: FleetSize, now_s: float) -> None:
        """Takes in what the planner found. A search that was cut short makes no pool smaller."""
        self._found = found
        for pool, scaled in self._pools.items():
            if not scaled.rules.is_elastic or pool not in found.nodes:
                continue
            size = self._size(pool, now_s)
            unusable = len(self._nodes(pool)) - len(self._capable(pool, now_s))
            asked, before = found.nodes[pool] + unusable, size.wanted
            lead = self._leads[pool]
            floor = scaled.rules.floor(self._epoch_s() + now_s, lead.total_s)
            asked = min(asked, max(size.wanted, self._affordable(pool, now_s)))
            size.ask(max(asked, before) if found.is_cut else asked, floor, now_s)
            if size.wanted != before:
                lead.wish(size.wanted - before, now_s)
                kind = EventKind.SHADOW if scaled.rules.shadow else EventKind.SCALE
                told = f"{found.attainment:.1%} of requests are predicted in time in {lead.total_s:.0f} s"
                seen = self._signals.in_words()
                told += f"; {seen}" if seen and size.wanted > before else ""
                if self._forecast_per_s is not None:
                    told += f"; {self._forecast_per_s:.3g} requests/s are forecast"
                self._history.note(now_s, kind, f"pool {pool}: {size.wanted} nodes instead of {before}: {told}")

    def settle(self, goal: Plan, models: Sequence[CatalogModel], now_s: float) -> str | None:
        """Makes nodes leave, or stay after all, until as many stay as are wanted; says why if that changes the plan. Of
        a pool that may not change, or not any more, none leaves.
        """
        before = self._fleet.leaving_units
        if not self.is_elastic and not before:
            return None
        self._began_s = now_s if self._began_s is None else self._began_s
        changing = {p for p, s in self._pools.items() if s.rules.is_elastic and not s.rules.shadow}
        leaving = before & {u.unit_id for u in self._fleet.registry.staying() if u.report.pool in changing}
        weights = {m.id: 0 if m.spec is None else m.spec.weight_bytes for m in models}
        for pool, scaled in self._pools.items():
            if not scaled.rules.is_elastic:
                continue
            self._leads[pool].see(self._units(pool), scaled.units_per_node, now_s)
            if pool not in changing:
                continue
            nodes, size = self._nodes(pool), self._size(pool, now_s)
            if pool not in self._kept and now_s - self._began_s < _GATHERING_S:
                size.include(len(nodes))
            surplus = len(nodes) - size.wanted
            going = [n for n in nodes if leaving.intersection(n.unit_ids)]
            for node in going[max(0, surplus) :]:
                leaving -= {*node.unit_ids}
            if surplus > len(going):
                able = [n for n in self._capable(pool, now_s) if n not in going]
                others = {u.unit_id for u in self._fleet.usable(now_s) if u.report.pool != pool}
                surplus -= len(going)
                for node in cheapest_to_empty(able, surplus, goal, weights, others=others, last=self.own_node):
                    leaving |= {*node.unit_ids}
        self._fleet.leaving_units = leaving
        if leaving == before:
            return None
        gone, back = sorted(leaving - before), sorted(before - leaving)
        return f"{', '.join(gone)} shall leave" if gone else f"{', '.join(back)} may stay" if back else None

    def _affordable(self, pool: str, now_s: float) -> int:
        """Of a pool, beside what the others have or want: of two that take turns one grows as the other shrinks."""
        held = {p: self._held(p, now_s) for p in self._pools}
        return self.ceilings.most_beside(held.pop(pool), held.values())

    def _held(self, pool: str, now_s: float) -> HeldNodes:
        nodes, rules = self._nodes(pool), self._pools[pool].rules
        wanted = self._size(pool, now_s).wanted if rules.is_elastic else 0
        gpus = {u.unit_id: u.report.num_gpus for u in self._units(pool)}
        if nodes:
            self._node_gpus[pool] = max(sum(gpus[unit_id] for unit_id in n.unit_ids) for n in nodes)
        return HeldNodes(
            nodes=max(wanted, len(nodes)),
            gpus=self._node_gpus.get(pool, 0),
            cost_per_hour=rules.cost_per_hour,
        )

    def _learn(self, asked: Mapping[str, ModelAsked], now_s: float) -> None:
        """From what was in time while no node came, went or was on its way."""
        self._read_signals(asked)
        self._calibration.note(*self._delta.since(asked))
        elastic = [p for p in self._pools.values() if p.rules.is_elastic]
        wanted = {pool: size.wanted for pool, size in self._sizes.items()}
        present = {pool: len(self._nodes(pool)) for pool in wanted}
        steady = (tuple(sorted(present.items())), self._fleet.leaving_units)
        if steady != self._steady or present != wanted:
            self._steady = steady
            self._calibration.restart(now_s)
            return
        self._calibration.settle(
            max(p.rules.target_attainment for p in elastic),
            has_slack=self._signals.has_slack,
            every_s=max(p.rules.cooldown_s for p in elastic),
            now_s=now_s,
        )

    def _read_signals(self, asked: Mapping[str, ModelAsked]) -> None:
        self._signals = signals_of((u.report for u in self._fleet.registry), asked)

    def _calibrated(self, models: Sequence[PlacementModel]) -> tuple[PlacementModel, ...]:
        factor = self._calibration.factor
        return tuple(m.at_rate(m.demand.rate_per_s / factor) for m in models)

    def states(self) -> tuple[PoolState, ...]:
        return tuple(self._state(pool) for pool in sorted(self._pools)) if self.is_elastic else ()

    def kept(self) -> tuple[KeptSize, ...]:
        return tuple(size.kept(pool) for pool, size in sorted(self._sizes.items()))

    def restore(self, sizes: Sequence[KeptSize]) -> None:
        self._kept = {s.pool: s for s in sizes}

    def _state(self, pool: str) -> PoolState:
        rules, lead = self._pools[pool].rules, self._leads[pool]
        nodes = self._nodes(pool)
        leaving = [n for n in nodes if self._fleet.leaving_units.intersection(n.unit_ids)]
        emptied = [n for n in leaving if not any(self._fleet.lingering(unit_id) for unit_id in n.unit_ids)]
        return PoolState(
            pool=pool,
            least=rules.least_nodes,
            most=rules.most_nodes,
            wanted=self._wanted(pool, len(nodes)),
            present=len(nodes),
            units_per_node=self._pools[pool].units_per_node,
            units=tuple(sorted(unit_id for n in nodes for unit_id in n.unit_ids)),
            leaving=tuple(sorted(unit_id for n in leaving for unit_id in n.unit_ids)),
            emptied=tuple(sorted(unit_id for n in emptied for unit_id in n.unit_ids)),
            shadow=rules.shadow,
            predicted=None if self._found is None else self._found.attainment,
            cost_per_hour=rules.cost_per_hour,
            provision_s=lead.provision_s,
            load_s=lead.load_s,
            bears=self._calibration.factor,
            signals=self._signals,
            forecast_per_s=self._forecast_per_s,
        )

    def _wanted(self, pool: str, present: int) -> int:
        if pool in self._sizes:
            return self._sizes[pool].wanted
        rules, kept = self._pools[pool].rules, self._kept.get(pool)
        return min(rules.most_nodes, max(rules.least_nodes, present if kept is None else kept.wanted))

    def _size(self, pool: str, now_s: float) -> PoolSize:
        """At first what is there."""
        if pool not in self._sizes:
            rules, kept = self._pools[pool].rules, self._kept.get(pool)
            present = len(self._nodes(pool)) if kept is None else kept.wanted
            self._sizes[pool] = PoolSize(rules, present, now_s if kept is None else kept.changed_s)
        return self._sizes[pool]

    def _elastic(self, pool: str, nodes: Sequence[PoolNode]) -> ElasticPool:
        rules = self._pools[pool].rules
        capacities = {u.unit_id: self._fleet.learning.corrected(u.capacity) for u in self._units(pool)}
        units = tuple(tuple(capacities[unit_id] for unit_id in node.unit_ids) for node in nodes)
        fixed = len(nodes)
        return ElasticPool(
            name=pool,
            least_nodes=rules.least_nodes if rules.is_elastic else fixed,
            most_nodes=rules.most_nodes if rules.is_elastic else fixed,
            nodes=units,
            like=tuple(replace(unit, asleep={}) for unit in max(units, key=len)),
            cost_per_hour=rules.cost_per_hour,
        )

    def _units(self, pool: str) -> list[KnownUnit]:
        staying = [u for u in self._fleet.registry.staying() if u.report.pool == pool]
        return sorted(staying, key=lambda u: (u.unit_id in self._fleet.leaving_units, u.joined_s, u.unit_id))

    def _nodes(self, pool: str) -> list[PoolNode]:
        """All but those that Ray takes away: first those that stay, then those that leave."""
        return list(_grouped(self._units(pool), self._pools[pool].units_per_node, self._fleet))

    def _capable(self, pool: str, now_s: float) -> list[PoolNode]:
        """Those that models may be on, or may be again if they need not leave."""
        usable = {u.unit_id for u in self._fleet.usable(now_s)} | self._fleet.leaving_units
        return [n for n in self._nodes(pool) if usable.intersection(n.unit_ids)]


def _grouped(units: Sequence[KnownUnit], units_per_node: int, fleet: Fleet) -> Iterator[PoolNode]:
    by_node: dict[tuple[bool, str], list[KnownUnit]] = defaultdict(list)
    for unit in units:
        if unit.report.node not in fleet.going_nodes and not unit.report.wants_to_leave:
            by_node[unit.unit_id in fleet.leaving_units, unit.report.node].append(unit)
    for (_, node), there in sorted(by_node.items()):
        for first in range(0, len(there), units_per_node):
            part = there[first : first + units_per_node]
            yield PoolNode(
                node=node, unit_ids=tuple(u.unit_id for u in part), open_requests=sum(_open_on(u) for u in part)
            )


def _open_on(unit: KnownUnit) -> int:
    load = unit.report.load
    return 0 if load is None else sum(m.running + m.waiting for m in load.models)
