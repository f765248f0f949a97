"""A small model of units under a control loop, in virtual time."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import msgspec

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
from pdmux_actor.lease import Lease, ModelPhase, ModelStatus, SleepingWeights, UnitReport, WeightsOrigin
from pdmux_actor.messages import LoadReport, ModelLoad, Slo
from placement.estimation.memory import resident_bytes
from placement.launch_limits import DEFAULT_LIMITS, LaunchLimits
from placement.plan import Plan
from placement.problem import Solver
from placement.solvers.memory_greedy import MemoryGreedySolver
from profiler.specs import DeviceSpec, ModelSpec
from router.admission.demand_counts import TargetCounts
from router.admission.demand_report import DemandReport, ModelAsked

HEARTBEAT_S = 0.5
BLOCK_BYTES = 8192
TOTAL_BLOCKS = 4096
SPEC = ModelSpec(
    architecture="LlamaForCausalLM",
    num_layers=4,
    hidden_size=128,
    intermediate_size=256,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    vocab_size=512,
    max_position_embeddings=1024,
    tie_word_embeddings=False,
    dtype="float32",
)


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


@dataclass
class FakeUnit:
    """Obeys leases as a unit does: the newest wins, a model needs one heartbeat to leave and to wake, and
    `load_s` to load. Models in `broken` do not load.
    """

    unit_id: str
    pool: str = "p"
    total_blocks: int = TOTAL_BLOCKS
    sizes_pool: bool = False
    lease: Lease | None = None
    phases: dict[str, ModelPhase] = field(default_factory=dict)
    is_leaving: bool = False
    wants_to_leave: bool = False
    failure: str | None = None
    node: str = "n"
    memory_bytes: int = 2**30
    broken: frozenset[str] = frozenset()
    device: str = ""
    measured_device: DeviceSpec | None = None
    host_memory_bytes: int = 0
    launch_limits: LaunchLimits = DEFAULT_LIMITS
    asleep: set[str] = field(default_factory=set)
    loaded: list[tuple[str, str]] = field(default_factory=list)  # how, and what
    origins: dict[str, WeightsOrigin] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    giving_way: dict[str, int] = field(default_factory=dict)
    drained_s: dict[str, float] = field(default_factory=dict)
    load_s: float = HEARTBEAT_S
    loading_s: dict[str, float] = field(default_factory=dict)

    @property
    def bases(self) -> dict[str, str | None]:
        return {a.model: a.base for a in self.lease.models} if self.lease is not None else {}

    def report(self) -> UnitReport:
        quotas = {a.model: a.quota_blocks for a in self.lease.models} if self.lease is not None else {}
        return UnitReport(
            unit_id=self.unit_id,
            node=self.node,
            pool=self.pool,
            num_gpus=1,
            endpoint=f"{self.unit_id}:1",
            memory_bytes=self.memory_bytes,
            block_bytes=BLOCK_BYTES,
            total_blocks=self.total_blocks,
            lease_version=0 if self.lease is None else self.lease.version,
            models=(
                *(
                    ModelStatus(
                        model=m,
                        phase=p,
                        max_model_len=1024,
                        base=self.bases.get(m),
                        origin=self.origins.get(m),
                        error="its weights are cut short" if p is ModelPhase.FAILED else None,
                    )
                    for m, p in self.phases.items()
                ),
                *(_sleeping(m) for m in sorted(self.asleep - self.phases.keys())),
            ),
            host_memory_bytes=self.host_memory_bytes,
            load=LoadReport(
                models=tuple(
                    ModelLoad(
                        model=m,
                        running=self.running.get(m, 0),
                        giving_way=self.giving_way.get(m, 0),
                        waiting=0,
                        used_blocks=0,
                        quota_blocks=quotas.get(m, 0),
                        preemptions_total=0,
                        prompt_tokens_total=0,
                        output_tokens_total=0,
                    )
                    for m in self.phases
                ),
                total_blocks=self.total_blocks,
                free_blocks=self.total_blocks,
                prefill_sms=1,
                decode_sms=1,
                steps_total=0,
            ),
            is_leaving=self.is_leaving,
            wants_to_leave=self.wants_to_leave,
            failure=self.failure,
            device=self.device,
            measured_device=self.measured_device,
            launch_limits=self.launch_limits,
            sizes_pool=self.sizes_pool,
        )

    def obey(self, lease: Lease) -> None:
        if self.lease is not None and lease.version <= self.lease.version:
            return
        self.lease = lease
        if lease.pool_blocks is not None and not self.phases:
            self.total_blocks = lease.pool_blocks
        wanted = [a.model for a in lease.models]
        kept = {m: ModelPhase.READY if p is ModelPhase.DRAINING else p for m, p in self.phases.items() if m in wanted}
        kept |= dict.fromkeys(self._with_other_weights(lease) & kept.keys(), ModelPhase.LOADING)
        there = {m for m, p in self.phases.items() if p in (ModelPhase.READY, ModelPhase.DRAINING)}
        leaving = dict.fromkeys(there.difference(wanted), ModelPhase.DRAINING)
        self.phases = dict.fromkeys(wanted, ModelPhase.LOADING) | kept | leaving
        self.origins |= {a.model: a.origin for a in lease.models}
        self.asleep &= {a.model for a in lease.asleep} | set(wanted)

    def _with_other_weights(self, lease: Lease) -> Set[str]:
        return {a.model for a in lease.models if self.origins.get(a.model, a.origin) != a.origin}

    def progress(self) -> None:
        """What leaves is gone once nothing of it runs or its time is up; what loads is ready."""
        draining = {m for m, p in self.phases.items() if p is ModelPhase.DRAINING}
        self.drained_s = {m: self.drained_s.get(m, 0.0) + HEARTBEAT_S for m in draining}
        if draining:
            assert self.lease is not None
            limits_s = self.lease.finish_s
            gone = {m for m in draining if not self.running.get(m) or self.drained_s[m] >= limits_s.get(m, 30.0)}
            self.asleep |= gone & {a.model for a in self.lease.asleep}
            self.phases = {m: p for m, p in self.phases.items() if m not in gone}
        loading = [m for m, p in self.phases.items() if p is ModelPhase.LOADING and m not in self.broken]
        self.loading_s = {m: self.loading_s.get(m, 0.0) + HEARTBEAT_S for m in loading}
        loading = [m for m in loading if m in self.asleep or self.loading_s[m] >= self.load_s]
        self.loaded += [("wake" if m in self.asleep else "load", m) for m in loading]
        self.asleep -= set(loading)
        fails = {m for m, p in self.phases.items() if m in self.broken and p is not ModelPhase.READY}
        self.phases |= dict.fromkeys(loading, ModelPhase.READY) | dict.fromkeys(fails, ModelPhase.FAILED)

    def ready(self) -> set[str]:
        return {m for m, p in self.phases.items() if p is ModelPhase.READY}


def _sleeping(model: str) -> ModelStatus:
    asleep = SleepingWeights(model=model, host_bytes=SPEC.weight_bytes, wake_s=0.1)
    return ModelStatus(model=model, phase=ModelPhase.ASLEEP, asleep=asleep)


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

    def want(self, wanted: Catalog, *, expected_units: int | None = None) -> None:
        self._catalog = wanted
        self._expected = self._expected if expected_units is None else expected_units
        planner = self.planner or PlannerInPlace(self.solver, self._costs.estimator)
        self.loop.set_catalog(
            wanted,
            expected_units={"p": self._expected},
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
    ) -> FakeUnit:
        """`broken` has one letter per model that does not load there."""
        self._started_units += 1
        unit = FakeUnit(
            unit_id=f"u{self._started_units}",
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
        there = {m for m, p in unit.phases.items() if p is not ModelPhase.FAILED} | {a.model for a in lease.models}
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
