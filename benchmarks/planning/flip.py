"""Popularity flips: what an incremental plan moves, what a plan from scratch moves, and what is served meanwhile.

What is served comes from the fleet simulator: the units start with the old plan and serve the old popularity for a
while, then requests come by the new one. The plans are moved to by the control loop's own rules; steps take their time
(weights at 2 GB/s; a drain lasts until the model's requests end).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planning.workloads import a100_nodes, mixed_fleet

from deploy.control.control_rules import ControlRules
from deploy.control.decision_history import PlacementDecision
from deploy.control.transition import Transition
from deploy.planning.pool_hardware import gpu_hardware
from deploy.simulation.deployments import model_info
from deploy.simulation.engine import EngineDesign, OnTokens, PlacedModel
from deploy.simulation.event_queue import EventQueue
from deploy.simulation.fleet_run import FleetRun
from deploy.simulation.gateway import SimulatedGateway
from deploy.simulation.leased_unit import LeasedUnit, LoadableModel
from deploy.simulation.node_supply import NodeUse
from deploy.simulation.streams import RequestStream, demand_stream
from deploy.simulation.units import SimulatedUnit, UnitIdentity
from deploy.simulation.view_updates import FleetModel
from pdmux_actor.lease import Lease, ModelAssignment, ModelPhase
from pdmux_actor.messages import Slo
from pdmux_actor.scheduling.settings import SchedulerSettings
from placement.estimation.memory import holds_weights
from placement.estimation.plan_estimate import estimate
from placement.estimation.problem_arrays import Estimator
from placement.plan import Plan, UnitCapacity, UnitPlan
from placement.plan_steps import Fits, move_cost, steps_between
from placement.problem import PlacementModel
from placement.solvers.search import SearchSolver
from profiler.gpus.a100_80g import DEVICE as A100_80G
from router.limits import GatewayLimits
from router.view import FleetView, ModelCard, UnitView
from traces.outcome import Ending, RequestOutcome
from traces.record import TraceRecord
from traces.report import attains

LOAD_BYTES_PER_S = 2e9
LEAD_IN_S = 10.0  # of the old popularity
NOTICED_S = 10.0  # from the flip to the first step of the move
WINDOW_S = 100.0
_MAX_RUNNING = 256
_NO_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipOutcome:
    """`plan`: of what follows the flip; "none": nothing moves. `expected_s`: the move by `move_cost`, `move_s` in the
    simulation (None: it had not ended when the last request had). Shares are of requests within SLO: `estimated_share`
    with the plan in place, `served_in_window` in the simulation, of those that arrive in the window from the flip on;
    `worst_model` is that of the model that has it worst. `rejected` of the window's requests were refused, `late` ones
    were served and missed a target.
    """

    plan: str
    loads: int
    drains: int
    load_gib: float
    expected_s: float
    move_s: float | None
    estimated_share: float
    served_in_window: float
    worst_model: float
    rejected: int
    late: int
    requests: int


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a request, and whether it attained its targets."""

    model: str
    ending: Ending
    attained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMove:
    """`judged`: the requests that arrived from the flip on."""

    judged: Sequence[Judged]
    move_s: float | None


def flipped(models: Sequence[PlacementModel]) -> list[PlacementModel]:
    """The hottest gets the rate of the coldest, and so on."""
    by_rate = sorted(models, key=lambda m: m.demand.rate_per_s)
    rates = [m.demand.rate_per_s for m in reversed(by_rate)]
    return [m.at_rate(r) for m, r in zip(by_rate, rates, strict=True)]


def flip_outcomes(
    num_gpus: int, num_models: int, *, seed: int, mean_rate_per_s: float, window_s: float
) -> Iterator[FlipOutcome]:
    """Units of two GPUs, which hold every model of the fleet but 65B; those stay out."""
    estimator = Estimator(max_running_sequences=_MAX_RUNNING)
    pool = a100_nodes(num_gpus)
    units = [pool.unit(node, first, 2) for node in range(pool.num_nodes) for first in range(0, pool.gpus_per_node, 2)]
    models = [m for m in mixed_fleet(num_models, seed=seed, mean_rate_per_s=mean_rate_per_s) if m.spec.num_layers < 80]
    solver = SearchSolver(estimator=estimator)
    before, later = solver.solve(units, models, None), flipped(models)
    plans = {
        "incremental": solver.solve(units, later, before),
        "from scratch": solver.solve(units, later, None),
        "none": before,
    }
    fleet = LedFleet(units, later, before)
    stream = _flip_stream(models, later, window_s=window_s, seed=seed)
    for name, plan in plans.items():
        steps = steps_between(before, plan, fits=fleet.fits)
        cost = move_cost(steps, {m.model: m.spec.weight_bytes for m in later}, load_bytes_per_s=LOAD_BYTES_PER_S)
        moved = fleet.moved_to(plan, stream)
        attained = sum(r.attained for r in moved.judged)
        yield FlipOutcome(
            plan=name,
            loads=cost.loads,
            drains=cost.drains,
            load_gib=cost.load_bytes / 2**30,
            expected_s=cost.seconds,
            move_s=moved.move_s,
            estimated_share=estimate(units, later, plan, estimator).served_share,
            served_in_window=attained / len(moved.judged),
            worst_model=worst_share(moved.judged),
            rejected=sum(r.ending is Ending.REJECTED for r in moved.judged),
            late=sum(r.ending is Ending.FINISHED for r in moved.judged) - attained,
            requests=len(moved.judged),
        )


def _flip_stream(
    before: Sequence[PlacementModel], later: Sequence[PlacementModel], *, window_s: float, seed: int
) -> RequestStream:
    old = demand_stream([m.demand for m in before], duration_s=LEAD_IN_S, seed=seed)
    new = demand_stream([m.demand for m in later], duration_s=window_s, seed=seed + 1000)

    def records() -> Iterator[TraceRecord]:
        yield from old.records()
        yield from (replace(r, arrival_s=r.arrival_s + LEAD_IN_S) for r in new.records())

    return replace(new, records=records, count=old.count + new.count, span_s=LEAD_IN_S + new.span_s)


def worst_share(judged: Sequence[Judged]) -> float:
    """Within SLO, of the model that has it worst."""
    flags: dict[str, list[bool]] = {}
    for request in judged:
        flags.setdefault(request.model, []).append(request.attained)
    return min(sum(of_model) / len(of_model) for of_model in flags.values())


class LedFleet:
    """That runs a plan, and is asked for what `models` say."""

    def __init__(self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], running: Plan) -> None:
        self._units = {u.unit_id: u for u in units}
        self._models = {m.model: m for m in models}
        self._running = running

    def fits(self, unit_id: str, held: frozenset[str]) -> bool:
        return holds_weights(self._units[unit_id], [self._models[m] for m in held])

    def moved_to(self, plan: Plan, stream: RequestStream) -> SimulatedMove:
        moves: list[PlannedMove] = []
        judged: list[Judged] = []

        def judge(outcome: RequestOutcome) -> None:
            if outcome.scheduled_s >= LEAD_IN_S:
                target = self._models[outcome.model].slo
                assert target is not None, "models of the benchmark have targets"
                judged.append(Judged(outcome.model, outcome.ending, attains(outcome, target)))

        def view_updates(models: Sequence[FleetModel], units: Sequence[SimulatedUnit]) -> PlannedMove:
            leased = {u.identity.unit_id: u for u in units if isinstance(u, LeasedUnit)}
            moves.append(PlannedMove(self._running, plan, self.fits, models, leased))
            return moves[-1]

        run = FleetRun(
            models=[self._fleet_model(m) for m in self._models.values()],
            build_units=lambda agenda, on_tokens: [self._unit(u, agenda, on_tokens) for u in self._units.values()],
            stream=stream,
            limits=GatewayLimits(),
            gateways=1,
            view_updates=view_updates,
            on_outcome=judge,
        )
        run.run()
        (move,) = moves
        began_s = LEAD_IN_S + NOTICED_S
        return SimulatedMove(
            judged=judged,
            move_s=None if move.ended_s is None else move.ended_s - began_s,
        )

    def _fleet_model(self, model: PlacementModel) -> FleetModel:
        assert model.slo is not None, "models of the benchmark have targets"
        slo = Slo(ttft_s=model.slo.ttft_s, tbt_s=model.slo.tbt_s)
        return FleetModel(model=model.model, slo=slo, vocab_size=model.spec.vocab_size)

    def _unit(self, unit: UnitCapacity, agenda: EventQueue, on_tokens: OnTokens) -> LeasedUnit:
        hardware = gpu_hardware(A100_80G, unit.num_gpus)
        infos = {m: model_info(model, unit) for m, model in self._models.items()}
        design = EngineDesign(
            device=hardware.device,
            latency=hardware.latency,
            block_bytes=unit.block_bytes,
            total_blocks=unit.total_blocks,
            policy="mux",
            settings=SchedulerSettings(max_running_sequences=_MAX_RUNNING, decision_log_entries=128),
            models=tuple(
                PlacedModel(info=infos[p.model], quota_blocks=p.quota_blocks)
                for p in self._running.models_of(unit.unit_id)
            ),
            host_s=hardware.host_s,
        )
        identity = UnitIdentity(
            unit_id=unit.unit_id, pool=unit.pool, num_gpus=unit.num_gpus, memory_bytes=unit.memory_bytes
        )
        loadable = {
            m: LoadableModel(info=info, load_s=self._models[m].spec.weight_bytes / LOAD_BYTES_PER_S)
            for m, info in infos.items()
        }
        return LeasedUnit(identity, design, loadable, agenda, on_tokens)


class PlannedMove:
    """Gives the units of a simulated fleet leases towards a plan, by the control loop's own `Transition`: units move
    side by side. No budget holds moves back, and a replica that has just come may leave.
    """

    moves_models = True

    def __init__(
        self, running: Plan, goal: Plan, fits: Fits, models: Sequence[FleetModel], units: Mapping[str, LeasedUnit]
    ) -> None:
        self._transition = Transition(ControlRules(min_residency_s=0.0, max_moves_per_min=_NO_LIMIT))
        self._plan, self._goal, self._fits = running, goal, fits
        self._cards = tuple(ModelCard(model=m.model, source="", revision=None, slo=m.slo, created_s=0) for m in models)
        self._slos = {m.model: m.slo for m in models}
        self._units = units
        self._version = 0
        self.ended_s: float | None = None

    def view(self, gateways: Sequence[SimulatedGateway], now_s: float) -> FleetView:
        if now_s >= LEAD_IN_S + NOTICED_S and self.ended_s is None:
            self._advance(now_s)
        return FleetView(
            models=self._cards,
            units=tuple(UnitView(report=unit.heartbeat(), age_s=0.0) for unit in self._units.values()),
            stream_token="",
            num_gateways=len(gateways),
        )

    def longest_tokens(self, model: str) -> int | None:
        return max(unit.longest_tokens(model) for unit in self._units.values())

    def has(self, unit_id: str, model: str) -> bool:
        return self._units[unit_id].is_ready(model)

    def has_died(self, unit_id: str) -> bool:
        return False

    def decisions(self, now_s: float) -> tuple[PlacementDecision, ...]:
        return ()

    def node_use(self, now_s: float) -> NodeUse | None:
        return None

    # ---- transition.FleetState ----

    def phase(self, unit_id: str, model: str) -> ModelPhase | None:
        return self._phases(unit_id).get(model)

    def total_blocks(self, unit_id: str) -> int:
        return self._units[unit_id].design.total_blocks

    def asleep(self) -> Mapping[str, Mapping[str, float]]:
        return {}

    def lingering(self, unit_id: str) -> frozenset[str]:
        return frozenset(self._phases(unit_id))

    def _phases(self, unit_id: str) -> Mapping[str, ModelPhase]:
        return {status.model: status.phase for status in self._units[unit_id].heartbeat().models}

    # ----

    def _advance(self, now_s: float) -> None:
        progress = self._transition.advance(
            self._plan, self._goal, self, fits=self._fits, now_s=now_s, sized=self._goal.placed | self._plan.placed
        )
        before, self._plan = self._plan, progress.plan
        for unit in self._plan.units:
            if unit.models != before.models_of(unit.unit_id):
                self._lease(unit)
        if progress.is_done:
            self.ended_s = now_s

    def _lease(self, unit: UnitPlan) -> None:
        self._version += 1
        assignments = tuple(
            ModelAssignment(model=p.model, source="", quota_blocks=p.quota_blocks, slo=self._slos[p.model])
            for p in unit.models
        )
        self._units[unit.unit_id].obey(Lease(version=self._version, models=assignments, policy="mux", stream_token=""))
