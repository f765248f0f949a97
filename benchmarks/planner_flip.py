"""Popularity flips: what an incremental plan moves, what a plan from scratch moves, and what is served meanwhile.

What is served comes from the fleet simulator: the units start with the old plan, requests arrive by the new popularity,
and the steps from plan to plan take their time (weights at 2 GB/s; a drain lasts until the model's requests end).
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from planner_workloads import a100_nodes, mixed_fleet

from deploy.control.history import Decision
from deploy.simulation.agenda import Agenda
from deploy.simulation.deployments import model_info
from deploy.simulation.engine import EngineDesign, OnTokens, PlacedModel
from deploy.simulation.fleet_run import FleetOutcome, FleetRun
from deploy.simulation.gateway import SimulatedGateway
from deploy.simulation.hardware import gpu_hardware
from deploy.simulation.leased_unit import LeasedUnit, LoadableModel
from deploy.simulation.news import FleetModel
from deploy.simulation.runs import attainment_of
from deploy.simulation.streams import demand_stream
from deploy.simulation.units import SimulatedUnit, UnitIdentity
from pdmux_actor.lease import Lease, ModelAssignment
from pdmux_actor.messages import Slo
from pdmux_actor.scheduling.settings import SchedulerSettings
from placement.diff import DrainModel, LoadModel, SetQuotas, Step, move_cost, steps_between
from placement.estimate import estimate
from placement.instance import Estimator
from placement.memory import holds_weights
from placement.plan import Plan, UnitCapacity
from placement.solvers.base import PlacementModel
from placement.solvers.search import SearchSolver
from profiler.devices import A100_80G
from router.limits import GatewayLimits
from router.view import FleetView, ModelCard, UnitView

LOAD_BYTES_PER_S = 2e9
NOTICED_S = 10.0  # from the flip to the first step of the move
WINDOW_S = 120.0
_MAX_RUNNING = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipOutcome:
    """`plan`: of what follows the flip; "none": nothing moves. `expected_s`: the move by `move_cost`, `move_s` in the
    simulation (None: it had not ended when the last request had). Shares are of requests within SLO: `estimated_share`
    with the plan in place, `served_in_window` in the simulation, of those that arrive in the window from the flip on;
    `rejected` of them found no unit in time.
    """

    plan: str
    loads: int
    drains: int
    load_gib: float
    expected_s: float
    move_s: float | None
    estimated_share: float
    served_in_window: float
    rejected: int
    requests: int


def flipped(models: Sequence[PlacementModel]) -> list[PlacementModel]:
    """The hottest gets the rate of the coldest, and so on."""
    by_rate = sorted(models, key=lambda m: m.demand.rate_per_s)
    rates = [m.demand.rate_per_s for m in reversed(by_rate)]
    return [replace(m, demand=replace(m.demand, rate_per_s=r)) for m, r in zip(by_rate, rates, strict=True)]


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
    fleet = _Fleet(units, later, before)
    for name, plan in plans.items():
        steps = fleet.steps_to(plan)
        cost = move_cost(steps, {m.model: m.spec.weight_bytes for m in later}, load_bytes_per_s=LOAD_BYTES_PER_S)
        outcome, move_s = fleet.simulated(steps, seed=seed, window_s=window_s)
        yield FlipOutcome(
            plan=name,
            loads=cost.loads,
            drains=cost.drains,
            load_gib=cost.load_bytes / 2**30,
            expected_s=cost.seconds,
            move_s=move_s,
            estimated_share=estimate(units, later, plan, estimator).served_share,
            served_in_window=attainment_of(outcome),
            rejected=outcome.total().rejected,
            requests=outcome.total().requests,
        )


class _Fleet:
    """That runs a plan, and is asked for what `models` say."""

    def __init__(self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], running: Plan) -> None:
        self._units = {u.unit_id: u for u in units}
        self._models = {m.model: m for m in models}
        self._running = running

    def steps_to(self, plan: Plan) -> tuple[Step, ...]:
        def fits(unit_id: str, held: frozenset[str]) -> bool:
            return holds_weights(self._units[unit_id], [self._models[m].spec for m in held])

        return steps_between(self._running, plan, fits=fits)

    def simulated(self, steps: Sequence[Step], *, seed: int, window_s: float) -> tuple[FleetOutcome, float | None]:
        moves: list[SteppedMove] = []

        def tell_news(models: Sequence[FleetModel], units: Sequence[SimulatedUnit]) -> SteppedMove:
            leased = {u.identity.unit_id: u for u in units if isinstance(u, LeasedUnit)}
            moves.append(SteppedMove(steps, self._running, models, leased))
            return moves[-1]

        run = FleetRun(
            models=[self._fleet_model(m) for m in self._models.values()],
            build_units=lambda agenda, on_tokens: [self._unit(u, agenda, on_tokens) for u in self._units.values()],
            stream=demand_stream([m.demand for m in self._models.values()], duration_s=window_s, seed=seed),
            limits=GatewayLimits(),
            gateways=1,
            tell_news=tell_news,
        )
        outcome = run.run()
        (move,) = moves
        return outcome, None if move.ended_s is None else max(0.0, move.ended_s - NOTICED_S)

    def _fleet_model(self, model: PlacementModel) -> FleetModel:
        assert model.slo is not None, "models of the benchmark have targets"
        slo = Slo(ttft_s=model.slo.ttft_s, tbt_s=model.slo.tbt_s)
        return FleetModel(model=model.model, slo=slo, vocab_size=model.spec.vocab_size)

    def _unit(self, unit: UnitCapacity, agenda: Agenda, on_tokens: OnTokens) -> LeasedUnit:
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


class SteppedMove:
    """Gives the units of a simulated fleet leases for one step after the other; steps of a kind that follow each other
    go together. Loads are done when the units are ready, drains when the models are gone.
    """

    moves_models = True

    def __init__(
        self, steps: Sequence[Step], running: Plan, models: Sequence[FleetModel], units: Mapping[str, LeasedUnit]
    ) -> None:
        self._groups = deque(list(group) for _, group in groupby(steps, key=type))
        self._under_way: list[Step] = []
        self._cards = tuple(ModelCard(model=m.model, source="", revision=None, slo=m.slo, created_s=0) for m in models)
        self._slos = {m.model: m.slo for m in models}
        self._units = units
        self._leased = {u: {p.model: p.quota_blocks for p in running.models_of(u)} for u in units}
        self._version = 0
        self.ended_s: float | None = None

    def view(self, gateways: Sequence[SimulatedGateway], now_s: float) -> FleetView:
        if now_s >= NOTICED_S:
            self._go_on(now_s)
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

    def decisions(self, now_s: float) -> tuple[Decision, ...]:
        return ()

    def _go_on(self, now_s: float) -> None:
        self._under_way = [step for step in self._under_way if not self._is_done(step)]
        while self._groups and not self._under_way:
            together = self._groups.popleft()
            for step in together:
                self._lease(step)
            self._under_way = [step for step in together if not self._is_done(step)]
        if not self._groups and not self._under_way and self.ended_s is None:
            self.ended_s = now_s

    def _lease(self, step: Step) -> None:
        leased = self._leased[step.unit_id]
        match step:
            case SetQuotas():
                leased.update(step.quota_blocks)
            case LoadModel():
                leased[step.model] = step.quota_blocks
            case DrainModel():
                del leased[step.model]
        self._version += 1
        assignments = tuple(
            ModelAssignment(model=m, source="", quota_blocks=q, slo=self._slos[m]) for m, q in leased.items()
        )
        lease = Lease(version=self._version, models=assignments, policy="mux", stream_token="")
        self._units[step.unit_id].obey(lease)

    def _is_done(self, step: Step) -> bool:
        unit = self._units[step.unit_id]
        match step:
            case SetQuotas():
                return True
            case LoadModel():
                return unit.is_ready(step.model)
            case DrainModel():
                return all(status.model != step.model for status in unit.heartbeat().models)
