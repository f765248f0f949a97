"""The product's control loop over a simulated fleet: it moves models while requests come."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from deploy.control.control_loop import ControlLoop
from deploy.control.control_rules import rules_of
from deploy.control.decision_history import PlacementDecision
from deploy.control.planner import Planner, PlannerInPlace
from deploy.control.scaled_pools import scaled_pools, seasons_of
from deploy.fleet_file.model_catalog import Catalog, CatalogModel
from deploy.fleet_file.model_specs import with_adapters_folded
from deploy.fleet_file.scaling_section import scaling_rules
from deploy.fleet_file.settings import FleetFile, PoolSection
from deploy.planning.fleet_planning import PlannedFleet
from deploy.planning.profiled_costs import profiled_costs, profiles_of
from deploy.simulation.gateway import SimulatedGateway
from deploy.simulation.leased_unit import LeasedUnit
from deploy.simulation.node_supply import NodeSupply, NodeTerms, NodeUse
from deploy.simulation.units import SimulatedUnit
from deploy.simulation.view_updates import FleetModel, MakeViewUpdates, ViewUpdates, longest_placed
from placement.estimation.problem_arrays import Estimator
from placement.problem import Solver
from placement.solvers.registry import SOLVERS
from profiler.specs import DeviceSpec, ModelSpec
from router.view import FleetView

_MONDAY_S = 4 * 86400.0  # Unix time began on a Thursday

MakePlanner = Callable[[Solver, Estimator], Planner]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTimes:
    """Holds what a load takes: weights at `bytes_per_s` (a fast local disk), and `fixed_s` whatever the model. A wake
    takes a copy from host memory, over the link of each GPU, and `wake_fixed_s`.
    """

    bytes_per_s: float = 2e9
    fixed_s: float = 0.5
    wake_fixed_s: float = 0.05

    def of(self, spec: ModelSpec) -> float:
        return self.fixed_s + spec.weight_bytes / self.bytes_per_s

    def of_wake(self, spec: ModelSpec, device: DeviceSpec, num_gpus: int) -> float:
        # Where there is no link, weights are copied within one memory: each byte is read and written.
        copies_per_s = device.host_copy_bytes_per_s * num_gpus or device.memory_bandwidth_bytes_per_s / 2
        return self.wake_fixed_s + spec.weight_bytes / copies_per_s


class ControlledFleet:
    """The product's control loop: heartbeats in, leases out."""

    moves_models = True

    def __init__(self, loop: ControlLoop, units: Mapping[str, LeasedUnit], supply: NodeSupply) -> None:
        self._loop = loop
        self._units = units
        self._supply = supply
        anywhere = {
            m: max(u.longest_tokens(m) for u in units.values() if m in u.loadable)
            for m in {m for unit in units.values() for m in unit.loadable}
        }
        self._longest_tokens = anywhere | longest_placed(list(units.values()))
        self._view = FleetView(models=(), units=(), stream_token="", num_gateways=1)

    def view(self, gateways: Sequence[SimulatedGateway], now_s: float) -> FleetView:
        for gateway in gateways:
            self._loop.hear_demand(gateway.scheduler.demand_report(now_s), now_s)
        self._loop.set_going_nodes(self._supply.going(now_s))
        for unit in self._supply.present(now_s):
            unit.obey(self._loop.heartbeat(self._supply.report(unit, now_s), now_s))
        if pools := self._loop.scaling.states():
            self._supply.follow(pools, now_s)
        # None where a node is lost in the first seconds: gateways go by what they were told before.
        self._view = self._loop.fleet_view(now_s) or self._view
        return self._view

    def longest_tokens(self, model: str) -> int | None:
        return self._longest_tokens.get(model)

    def has(self, unit_id: str, model: str) -> bool:
        return self._units[unit_id].is_ready(model)

    def has_died(self, unit_id: str) -> bool:
        return self._units[unit_id].has_died

    def decisions(self, now_s: float) -> tuple[PlacementDecision, ...]:
        return self._loop.status(now_s).decisions

    def node_use(self, now_s: float) -> NodeUse | None:
        return self._supply.use(now_s) if self._loop.scaling.states() else None


def led_by_control_loop(
    fleet: FleetFile,
    planned: PlannedFleet,
    *,
    policy: str,
    make_planner: MakePlanner = PlannerInPlace,
    seed: int = 0,
) -> MakeViewUpdates:
    """Lets a control loop lead the units by the rules of the file's `placement` and `scaling` sections. Its units must
    be LeasedUnits: those that are planned and, of pools that may grow, those of the nodes that may come. Time 0 is a
    Monday's midnight; by `seed` spot nodes are lost. Raises FleetFileError: the trace of a forecast cannot be used.
    """
    pools = {p.name: p for p in fleet.pools}
    seasons = seasons_of(pools, fleet.models)

    def tell(models: Sequence[FleetModel], units: Sequence[SimulatedUnit]) -> ViewUpdates:
        leased = {u.identity.unit_id: u for u in units if isinstance(u, LeasedUnit)}
        assert len(leased) == len(units), "only leased units follow a control loop"
        costs = profiled_costs(profiles_of(fleet))
        solver = SOLVERS[fleet.placement.solver].for_units(costs.estimator, lambda: False)
        loop = ControlLoop(stream_token="", first_version=1, started_s=0.0, epoch_s=lambda: _MONDAY_S)
        scaled = scaled_pools(pools, seasons)
        loop.set_catalog(
            Catalog(models=_catalog_models(fleet, planned), policy=policy),
            expected_units={p.name: Counter(u.pool for u in planned.units)[p.name] for p in fleet.pools},
            # No search is cut short: the same plans on any machine.
            planner=make_planner(solver, costs.estimator),
            costs=costs,
            rules=rules_of(fleet.placement, hold_s=fleet.gateway.hold_s),
            scaling=scaled,
        )
        supply = NodeSupply(
            leased,
            first=Counter(pool for pool, _ in {(u.pool, u.node) for u in planned.units}),
            terms={pool.name: _terms(pool) for pool in fleet.pools},
            seed=seed,
        )
        return ControlledFleet(loop, leased, supply)

    return tell


def _terms(pool: PoolSection) -> NodeTerms:
    rules = scaling_rules(pool.nodes, pool.scaling, pool.devices_per_node)
    spot = None if pool.scaling is None else pool.scaling.spot
    return NodeTerms(provision_s=rules.provision_s, cost_per_hour=rules.cost_per_hour, spot=spot)


def _catalog_models(fleet: FleetFile, planned: PlannedFleet) -> tuple[CatalogModel, ...]:
    by_name = {m.model: m for m in planned.models}
    return tuple(
        CatalogModel(
            settings=m,
            dtype=m.dtype or fleet.engine.dtype,
            created_s=0,
            spec=by_name[m.id].spec,
            adapters_bytes=by_name[m.id].adapters_bytes,
        )
        for m in with_adapters_folded(fleet.models)
    )
