"""Popularity flips: what an incremental plan moves, what a plan from scratch moves, and what is served meanwhile.

What is served comes from the fleet simulator: the units start with the old plan, requests arrive by the new popularity,
and the steps from plan to plan take their time (weights at 2 GB/s, drains until the last request has ended).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from planner_workloads import a100_nodes, mixed_fleet

from deploy.simulation.agenda import Agenda
from deploy.simulation.deployments import model_info
from deploy.simulation.engine import EngineDesign, OnTokens, PlacedModel
from deploy.simulation.fleet_run import FleetModel, FleetOutcome, FleetRun
from deploy.simulation.hardware import gpu_hardware
from deploy.simulation.moves import FleetMove
from deploy.simulation.runs import attainment_of
from deploy.simulation.streams import demand_stream
from deploy.simulation.units import MuxedUnit, UnitIdentity
from pdmux_actor.messages import Slo
from pdmux_actor.scheduling.settings import SchedulerSettings
from placement.diff import Step, move_cost, steps_between
from placement.estimate import estimate
from placement.instance import Estimator
from placement.memory import holds_weights
from placement.plan import Plan, UnitCapacity
from placement.solvers.base import PlacementModel
from placement.solvers.search import SearchSolver
from profiler.devices import A100_80G
from router.limits import GatewayLimits

LOAD_BYTES_PER_S = 2e9
NOTICED_S = 10.0  # from the flip to the first step of the move
WINDOW_S = 180.0
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

    def simulated(self, steps: tuple[Step, ...], *, seed: int, window_s: float) -> tuple[FleetOutcome, float | None]:
        move = FleetMove(
            start_s=NOTICED_S,
            steps=steps,
            infos={
                (u, m): model_info(model, unit) for u, unit in self._units.items() for m, model in self._models.items()
            },
            load_s={m: model.spec.weight_bytes / LOAD_BYTES_PER_S for m, model in self._models.items()},
        )
        run = FleetRun(
            models=[self._fleet_model(m) for m in self._models.values()],
            build_units=lambda agenda, on_tokens: [self._unit(u, agenda, on_tokens) for u in self._units.values()],
            stream=demand_stream([m.demand for m in self._models.values()], duration_s=window_s, seed=seed),
            limits=GatewayLimits(),
            gateways=1,
            move=move,
        )
        outcome = run.run()
        assert run.move is not None, "it was given"
        ended_s = run.move.ended_s
        return outcome, None if ended_s is None else ended_s - NOTICED_S

    def _fleet_model(self, model: PlacementModel) -> FleetModel:
        assert model.slo is not None, "models of the benchmark have targets"
        slo = Slo(ttft_s=model.slo.ttft_s, tbt_s=model.slo.tbt_s)
        return FleetModel(model=model.model, slo=slo, vocab_size=model.spec.vocab_size)

    def _unit(self, unit: UnitCapacity, agenda: Agenda, on_tokens: OnTokens) -> MuxedUnit:
        hardware = gpu_hardware(A100_80G, unit.num_gpus)
        design = EngineDesign(
            device=hardware.device,
            latency=hardware.latency,
            block_bytes=unit.block_bytes,
            total_blocks=unit.total_blocks,
            policy="mux",
            settings=SchedulerSettings(max_running_sequences=_MAX_RUNNING, decision_log_entries=128),
            models=tuple(
                PlacedModel(info=model_info(self._models[p.model], unit), quota_blocks=p.quota_blocks)
                for p in self._running.models_of(unit.unit_id)
            ),
            host_s=hardware.host_s,
        )
        identity = UnitIdentity(
            unit_id=unit.unit_id, pool=unit.pool, num_gpus=unit.num_gpus, memory_bytes=unit.memory_bytes
        )
        return MuxedUnit(identity, design, agenda, on_tokens)
