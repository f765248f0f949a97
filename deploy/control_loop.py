"""Decides which unit serves what. Pure: told what units report and what time it is, it answers leases and views."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from deploy.catalog import Catalog
from deploy.control.popularity import Popularity
from deploy.fleet_status import FleetStatus, ModelState, UnitState
from pdmux_actor.lease import Lease, ModelAssignment, ModelPhase, UnitReport
from placement.plan import ModelPlacement, Plan, UnitCapacity, UnitPlan
from placement.solvers.base import Solver
from router.demand_report import DemandReport
from router.view import FleetView, UnitView

_HELD = frozenset({ModelPhase.READY, ModelPhase.LOADING})


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlTiming:
    """`expiry_s`: a unit that is silent for so long is gone. `quiet_s`: a unit that is silent for so long gives way to
    a new one of its pool. `settle_s`: how long the first plan waits for expected units. `warm_up_s`: how long a fresh
    control loop waits for reports before it tells gateways what it knows, so that its restart looks like silence.
    """

    expiry_s: float = 15.0
    quiet_s: float = 1.5
    settle_s: float = 20.0
    warm_up_s: float = 3.0


@dataclass(slots=True, eq=False)
class _Unit:
    report: UnitReport
    heard_s: float
    lease: Lease | None = None


class ControlLoop:
    """`first_version` must exceed the versions of any control loop that led the same units before: a unit ignores
    leases that are older than the newest it has seen.
    """

    def __init__(
        self,
        *,
        stream_token: str,
        first_version: int,
        started_s: float,
        timing: ControlTiming = ControlTiming(),
    ) -> None:
        self._stream_token = stream_token
        self._version = first_version
        self._started_s = started_s
        self._timing = timing
        self._catalog = Catalog(models=(), policy="mux")
        self._solver: Solver | None = None
        self._expected: dict[str, int] = {}
        self._units: dict[str, _Unit] = {}
        self._plan = Plan(units=())
        self._popularity = Popularity()
        self._is_plan_due = True
        self._is_settled = False

    def set_catalog(self, catalog: Catalog, *, expected_units: Mapping[str, int], solver: Solver) -> None:
        """`expected_units` counts the units of each pool once the fleet is up."""
        self._catalog = catalog
        self._solver = solver
        self._expected = dict(expected_units)
        self._popularity.expect(m.prior() for m in catalog.models)
        self._is_plan_due = True

    def hear_demand(self, report: DemandReport, now_s: float) -> None:
        self._popularity.hear(report, now_s)
        self._popularity.advance(now_s)

    def heartbeat(self, report: UnitReport, now_s: float) -> Lease:
        self._drop_silent(now_s)
        unit = self._units.get(report.unit_id)
        if unit is None:
            self._make_room(report.pool, now_s)
            unit = self._units[report.unit_id] = _Unit(report=report, heard_s=now_s)
            self._adopt(report)
            self._is_plan_due = True
        elif _capacity(unit.report) != _capacity(report) or unit.report.is_leaving != report.is_leaving:
            self._is_plan_due = True
        unit.report = report
        unit.heard_s = now_s
        if self._is_plan_due and self._solver is not None and self._may_plan(now_s):
            self._replan(self._solver)
        if unit.lease is None or not report.is_leaving:  # who leaves keeps its lease to the end
            unit.lease = self._lease(unit)
        return unit.lease

    def fleet_view(self, now_s: float) -> FleetView | None:
        """None while a fresh control loop may not have heard of all units."""
        self._drop_silent(now_s)
        if not self._is_complete() and now_s - self._started_s < self._timing.warm_up_s:
            return None
        return FleetView(
            models=tuple(m.card() for m in self._catalog.models),
            units=tuple(UnitView(report=u.report, age_s=max(0.0, now_s - u.heard_s)) for u in self._units.values()),
            stream_token=self._stream_token,
            num_gateways=max(1, self._popularity.num_gateways(now_s)),
        )

    def status(self, now_s: float) -> FleetStatus:
        self._drop_silent(now_s)
        return FleetStatus(
            models=tuple(self._model_state(m.id, m.problem) for m in self._catalog.models),
            units=tuple(UnitState(report=u.report, silent_s=max(0.0, now_s - u.heard_s)) for u in self._units.values()),
            policy=self._catalog.policy,
        )

    def _drop_silent(self, now_s: float) -> None:
        for unit_id in [i for i, u in self._units.items() if now_s - u.heard_s > self._timing.expiry_s]:
            self._drop(unit_id)

    def _drop(self, unit_id: str) -> None:
        del self._units[unit_id]
        self._plan = replace(self._plan, units=tuple(u for u in self._plan.units if u.unit_id != unit_id))
        self._is_plan_due = True

    def _make_room(self, pool: str, now_s: float) -> None:
        """A restarted unit comes with a new id: the silent one whose place it takes need not run into its expiry."""
        peers = {i: u for i, u in self._units.items() if u.report.pool == pool and not u.report.is_leaving}
        quiet = [i for i, u in peers.items() if now_s - u.heard_s > self._timing.quiet_s]
        if quiet and len(peers) >= self._expected.get(pool, 0):
            self._drop(min(quiet, key=lambda i: (peers[i].heard_s, i)))

    def _adopt(self, report: UnitReport) -> None:
        """What a unit serves when it is first heard of stays there: this control loop restarted, the unit did not."""
        if report.is_leaving:
            return
        quotas = {m.model: m.quota_blocks for m in report.load.models} if report.load is not None else {}
        held = [s.model for s in report.models if s.phase in _HELD and self._catalog.get(s.model) is not None]
        if held:
            share = report.total_blocks // len(held)
            placements = tuple(ModelPlacement(model=m, quota_blocks=quotas.get(m) or share) for m in held)
            adopted = UnitPlan(unit_id=report.unit_id, models=placements)
            self._plan = replace(self._plan, units=(*self._plan.units, adopted))

    def _staying(self) -> dict[str, _Unit]:
        return {i: u for i, u in self._units.items() if not u.report.is_leaving}

    def _is_complete(self) -> bool:
        present: dict[str, int] = {}
        for unit in self._staying().values():
            present[unit.report.pool] = present.get(unit.report.pool, 0) + 1
        return bool(present) and all(present.get(p, 0) >= n for p, n in self._expected.items())

    def _may_plan(self, now_s: float) -> bool:
        """Only the first plan waits: later, a unit that is missing is a unit that was lost."""
        self._is_settled |= self._is_complete() or now_s - self._started_s >= self._timing.settle_s
        return self._is_settled

    def _replan(self, solver: Solver) -> None:
        """Models whose shape is unknown (their config.json cannot be read now) stay where they are, untouched."""
        placeable = [p for p in (m.placement() for m in self._catalog.models) if p is not None]
        unknown = {m.id for m in self._catalog.models if m.spec is None}
        kept = {u.unit_id: tuple(p for p in u.models if p.model in unknown) for u in self._plan.units}
        capacities = [
            _without(_capacity(u.report), sum(p.quota_blocks for p in kept.get(i, ())))
            for i, u in self._staying().items()
        ]
        plan = solver.solve(capacities, placeable, self._plan)
        placed = {u.unit_id: u.models for u in plan.units}
        self._plan = replace(
            plan,
            units=tuple(UnitPlan(unit_id=i, models=(*placed.get(i, ()), *kept.get(i, ()))) for i in self._staying()),
        )
        self._is_plan_due = False

    def _lease(self, unit: _Unit) -> Lease:
        models = self._assignments(unit.report.unit_id)
        old = unit.lease
        if (
            old is not None
            and (old.models, old.policy) == (models, self._catalog.policy)
            and unit.report.lease_version <= old.version
        ):
            return old
        self._version = max(self._version, unit.report.lease_version) + 1
        return Lease(version=self._version, models=models, policy=self._catalog.policy, stream_token=self._stream_token)

    def _assignments(self, unit_id: str) -> tuple[ModelAssignment, ...]:
        placements = next((u.models for u in self._plan.units if u.unit_id == unit_id), ())
        known = [(self._catalog.get(p.model), p.quota_blocks) for p in placements]
        return tuple(model.assignment(quota) for model, quota in known if model is not None)

    def _model_state(self, model: str, problem: str | None) -> ModelState:
        statuses = [s for u in self._units.values() for s in u.report.models if s.model == model]
        error = problem or next((s.error for s in statuses if s.error is not None), None)
        return ModelState(
            model=model,
            phases=tuple(s.phase for s in statuses),
            planned_units=self._plan.units_of(model),
            problem=error or self._plan.unplaced.get(model),
        )


def _capacity(report: UnitReport) -> UnitCapacity:
    return UnitCapacity(
        unit_id=report.unit_id,
        num_gpus=report.num_gpus,
        memory_bytes=report.memory_bytes,
        block_bytes=report.block_bytes,
        total_blocks=report.total_blocks,
    )


def _without(capacity: UnitCapacity, blocks: int) -> UnitCapacity:
    """The pool is part of the memory: what is left for weights stays the same."""
    taken = min(blocks, capacity.total_blocks)
    return replace(
        capacity,
        total_blocks=capacity.total_blocks - taken,
        memory_bytes=capacity.memory_bytes - taken * capacity.block_bytes,
    )
