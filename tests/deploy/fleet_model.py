"""A small model of units under a control loop, in virtual time."""

from collections.abc import Mapping

import msgspec
from lease_obeyer import BLOCK_BYTES, HEARTBEAT_S, SPEC, TOTAL_BLOCKS, FakeUnit

from deploy.control.control_loop import ControlLoop
from deploy.control.control_rules import ControlRules
from deploy.control.control_state import ControlState
from deploy.control.decision_history import PlacementDecision
from deploy.control.fleet_costs import FleetCosts
from deploy.control.fleet_status import FleetStatus, ModelState, UnitStatus
from deploy.control.flight_recorder import FlightRecorder
from deploy.control.planner import Planner, PlannerInPlace
from deploy.control.pool_scaling import ScaledPool
from deploy.fleet_file.model_catalog import Catalog, CatalogModel
from deploy.fleet_file.model_section import ModelSection
from pdmux_actor.lease import (
    Lease,
    ModelPhase,
)
from pdmux_actor.messages import Slo
from placement.estimation.memory import resident_bytes
from placement.plan import Plan
from placement.problem import Solver
from placement.solvers.memory_greedy import MemoryGreedySolver
from profiler.specs import ModelSpec
from router.admission.demand_counts import TargetCounts
from router.admission.demand_report import DemandReport, ModelAsked


def catalog_model(
    model: str,
    *,
    replicas: int = 1,
    spec: ModelSpec | None = SPEC,
    source: str = "/m",
    sleeps_after_s: float | None = None,
    max_replicas: int | None = None,
) -> CatalogModel:
    """With `sleeps_after_s` it may be scaled to zero."""
    bounds: dict[str, float] = {"min": replicas, "max": max_replicas or replicas}
    if sleeps_after_s is not None:
        bounds = {"min": 0, "max": replicas, "idle_after_s": sleeps_after_s}
    settings = ModelSection.model_validate({"id": model, "source": source, "replicas": bounds})
    return CatalogModel(settings=settings, dtype=None, created_s=7, spec=spec, problem=None if spec else "not found")


def adapter_model(
    model: str, base: CatalogModel, *, sleeps_after_s: float | None = None, adapter: str | None = None
) -> CatalogModel:
    replicas = {} if sleeps_after_s is None else {"min": 0, "idle_after_s": sleeps_after_s}
    section = {"id": model, "base": base.id, "adapter": adapter or f"/adapters/{model}", "replicas": replicas}
    settings = ModelSection.model_validate(section)
    return CatalogModel(settings=settings, dtype=None, created_s=7, spec=None, base=base.settings)


def catalog(*models: str | CatalogModel, policy: str = "mux") -> Catalog:
    return Catalog(models=tuple(m if isinstance(m, CatalogModel) else catalog_model(m) for m in models), policy=policy)


class World:
    """`leases` holds every lease that a unit was ever given, by unit and version."""

    def __init__(
        self,
        wanted: Catalog,
        *,
        expected_units: int,
        solver: Solver | None = None,
        rules: ControlRules | None = None,
        planner: Planner | None = None,
        recorder: FlightRecorder | None = None,
        costs: FleetCosts | None = None,
        scaling: Mapping[str, ScaledPool] | None = None,
    ) -> None:
        self.now_s = 100.0
        self._scaling = scaling
        self.units: dict[str, FakeUnit] = {}
        self.leases: dict[tuple[str, int], Lease] = {}
        self.solver = solver or MemoryGreedySolver()
        self.planner = planner
        self._recorder = recorder or FlightRecorder()
        self._costs = costs or FleetCosts()
        self._rules = rules
        self._catalog = wanted
        self._expected = expected_units
        self._started_units = 0
        self._asked: dict[str, int] = {}
        self.waiting: dict[str, int] = {}
        self.held: dict[str, int] = {}
        self.held_low: dict[str, int] = {}
        self.targets: dict[str, Slo] = {}  # that all requests ask for from now on
        self._targets: dict[str, TargetCounts] = {}
        self.prompt_tokens, self.output_tokens = 100, 10
        self.restart_control_loop()

    def restart_control_loop(self, state: ControlState | None = None) -> None:
        """`state`: what the one before left."""
        self.loop = ControlLoop(
            stream_token="t",
            first_version=int(self.now_s * 1000),
            started_s=self.now_s,
            recorder=self._recorder,
        )
        if state is not None:
            self.loop.take_over(state)
        self.want(self._catalog)

    def hand_over(self, *, after_s: float = 3.0) -> None:
        """The control loop dies, and another, on a machine with another clock, goes on where it ended."""
        kept = self.loop.state(self.now_s)
        assert kept is not None
        written = msgspec.json.encode(kept.shifted(1e9))
        self.now_s += after_s
        self.restart_control_loop(msgspec.json.decode(written, type=ControlState).shifted(-1e9))

    def want(self, wanted: Catalog, *, expected_units: int | None = None, pool: str = "p") -> None:
        self._catalog = wanted
        self._expected = self._expected if expected_units is None else expected_units
        planner = self.planner or PlannerInPlace(self.solver, self._costs.estimator)
        self.loop.set_catalog(
            wanted,
            expected_units={pool: self._expected},
            planner=planner,
            rules=self._rules,
            costs=self._costs,
            scaling=self._scaling,
        )

    def start_unit(
        self,
        *,
        total_blocks: int = TOTAL_BLOCKS,
        memory_bytes: int = 2**30,
        node: str = "n",
        broken: str = "",
        sizes_pool: bool = False,
        pool: str = "p",
    ) -> FakeUnit:
        """`broken` has one letter per model that does not load there."""
        self._started_units += 1
        unit = FakeUnit(
            unit_id=f"u{self._started_units}",
            pool=pool,
            total_blocks=total_blocks,
            memory_bytes=memory_bytes,
            node=node,
            broken=frozenset(broken),
            sizes_pool=sizes_pool,
        )
        self.units[unit.unit_id] = unit
        return unit

    def _assert_memory(self, unit: FakeUnit, lease: Lease) -> None:
        """What the lease names has room beside what is still on the device."""
        specs = {m.id: m.spec for m in self._catalog.models}
        there = {m for m, p in unit.phases.items() if p is not ModelPhase.FAILED and not unit.downloads(m)}
        there |= {a.model for a in lease.models}
        needed_bytes = sum(resident_bytes(spec, 1, unit.launch_limits) for m in there if (spec := specs.get(m)))
        pool_bytes = 0 if unit.sizes_pool else unit.total_blocks * BLOCK_BYTES
        assert needed_bytes <= unit.memory_bytes - pool_bytes, f"{unit.unit_id}: {sorted(there)}"

    def ask(self, model: str, requests: int = 1) -> None:
        self._asked[model] = self._asked.get(model, 0) + requests
        for _ in range(requests if model in self.targets else 0):
            own = next(m.slo for m in self._catalog.models if m.id == model)
            self._targets.setdefault(model, TargetCounts()).asked(self.targets[model], own)

    def serving(self, model: str) -> list[str]:
        """Units that have it ready."""
        return [u.unit_id for u in self.units.values() if model in u.ready()]

    def decided(self, kind: str) -> list[str]:
        """Reasons of the decisions of a kind, newest first."""
        return [d.reason for d in self.loop.status(self.now_s).decisions if d.kind == kind]

    def _demand(self) -> DemandReport:
        models = {m.id for m in self._catalog.models}
        return DemandReport(
            gateway_id="g",
            models=tuple(
                ModelAsked(
                    model=m,
                    requests_total=self._asked.get(m, 0),
                    prompt_tokens_total=self.prompt_tokens * self._asked.get(m, 0),
                    output_tokens_total=self.output_tokens * self._asked.get(m, 0),
                    waiting=self.waiting.get(m, 0) + self.held.get(m, 0),
                    held=self.held.get(m, 0),
                    held_low=self.held_low.get(m, 0),
                    ttft_targets=self._targets.get(m, TargetCounts()).ttft(),
                    tbt_targets=self._targets.get(m, TargetCounts()).tbt(),
                )
                for m in sorted(models)
            ),
        )

    def kill_unit(self, unit_id: str) -> None:
        del self.units[unit_id]

    def beat(
        self, times: int = 1, *, silent: frozenset[str] = frozenset(), asks: Mapping[str, int] | None = None
    ) -> None:
        """`asks`: requests per model in every beat."""
        for _ in range(times):
            self.now_s += HEARTBEAT_S
            for model, requests in (asks or {}).items():
                self.ask(model, requests)
            self.loop.hear_demand(self._demand(), self.now_s)
            for unit in self.units.values():
                if unit.unit_id in silent:
                    continue
                report = unit.report()
                lease = self.loop.heartbeat(report, self.now_s)
                self._recorder.heard(self.now_s, report, lease)
                known = self.leases.setdefault((unit.unit_id, lease.version), lease)
                assert known == lease, "one version, two contents"
                assert sum(a.quota_blocks for a in lease.models) <= (unit.total_blocks or lease.pool_blocks or 0)
                self._assert_memory(unit, lease)
                unit.progress()
                unit.obey(lease)


def fleet_status(*units: FakeUnit, models: tuple[ModelState, ...] = ()) -> FleetStatus:
    return FleetStatus(
        models=models,
        units=tuple(UnitStatus(report=u.report(), silent_s=0.25) for u in units),
        policy="mux",
        plan=Plan(units=()),
        goal=Plan(units=()),
        decisions=(PlacementDecision(kind="plan", reason="unit u1 joined", seconds_ago=3.0),),
    )
