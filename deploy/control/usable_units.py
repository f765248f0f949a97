"""The units as planning and moving see them: those that may be used, and how far their models are."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace

from deploy.control.control_rules import ControlRules, ControlTiming
from deploy.control.control_state import KeptDeaths
from deploy.control.cordons import Cordon, Cordons, CordonScope, LostCordons, homeless_without
from deploy.control.leases import LeaseBook
from deploy.control.neighbour_learning import NeighbourLearning
from deploy.control.restart_budget import RestartBudget, UnitSlots
from deploy.control.step_learning import StepLearning
from deploy.control.unit_registry import KnownUnit, Lost, UnitRegistry
from pdmux_actor.lease import ModelPhase, UnitReport
from placement.estimation.problem_arrays import Estimator
from placement.plan import Plan
from placement.plan_steps import Asleep
from placement.problem import PlacementModel

_NOT_HELD = frozenset({ModelPhase.ASLEEP, ModelPhase.FAILED})
_TRUSTED_S = 3.0  # a unit that is silent for longer is not relied on for a model that leaves another


class Fleet:
    """Implements transition.FleetState."""

    def __init__(
        self,
        timing: ControlTiming,
        rules: ControlRules,
        leases: LeaseBook,
        stood_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._leases = leases
        self.registry = UnitRegistry(timing)
        self.learning = StepLearning()
        self.neighbours = NeighbourLearning(stood_s)
        self._places = UnitSlots()
        self._place_deaths = RestartBudget(rules)
        self._load_deaths = RestartBudget(rules)
        self._reasons: dict[str, str] = {}
        self._now_s = 0.0
        self.cordons = Cordons()
        self.lost_cordons = LostCordons()
        self.going_nodes: frozenset[str] = frozenset()
        """Nodes that Ray is about to take away."""
        self._went: frozenset[str] = frozenset()
        self.leaving_units: frozenset[str] = frozenset()
        """Units that the control loop gives up: their nodes are not needed any more."""

    def at(self, now_s: float) -> "Fleet":
        """Phases are told as of then."""
        self._now_s = now_s
        return self

    def join(self, report: UnitReport, now_s: float) -> None:
        self._places.join(report)
        if (cordon := self.lost_cordons.back(report.unit_id, now_s)) is not None:
            self.cordons = self.cordons.having(cordon)

    def set_going_nodes(self, nodes: frozenset[str]) -> None:
        known = {unit.report.node for unit in self.registry}
        self.going_nodes, self._went = nodes, nodes | (self._went & known)

    def drop_silent(self, now_s: float) -> list[Lost]:
        """Drops them from the registry."""
        return [self._told(lost) for lost in self.registry.drop_silent(now_s)]

    def make_room(self, report: UnitReport, now_s: float) -> Lost | None:
        """Drops the silent unit whose place a new one takes."""
        replaced = self.registry.make_room(report, now_s)
        return None if replaced is None else self._told(replaced)

    def _told(self, lost: Lost) -> Lost:
        """A unit that the control loop has given up did not die, nor did one that was empty when its node went: nobody
        lets it say goodbye.
        """
        return replace(lost, died=lost.died and not self._was_to_go(lost.report))

    def _was_to_go(self, report: UnitReport) -> bool:
        is_empty = all(s.phase in _NOT_HELD for s in report.models)
        return report.unit_id in self.leaving_units or (report.node in self._went and is_empty)

    def leave(self, lost: Lost, now_s: float) -> tuple[str, ...]:
        """Notes that a unit is gone and returns what its death used up, in words."""
        place = self._places.leave(lost.report)
        if not lost.died:
            self.cordons = self.cordons.without(CordonScope.UNIT, lost.report.unit_id)
            return ()
        self.put_aside_cordons((lost.report.unit_id,), now_s)
        spent = []
        loading = [s.model for s in lost.report.models if s.phase is ModelPhase.LOADING]
        if len(loading) == 1:  # of several nobody knows which it was
            if self._load_deaths.note(loading[0], now_s):
                self._reasons[loading[0]] = "units keep dying while they load it; their logs say why"
                spent.append(f"model {loading[0]}: {self._reasons[loading[0]]}")
        elif self._place_deaths.note(place, now_s):
            spent.append(f"place {place} is taken out: its units keep dying")
        return tuple(spent)

    def put_aside_cordons(self, unit_ids: Collection[str], now_s: float) -> None:
        """Withdraws the cordons of units that are given up, until they come back."""
        gone = [c for c in self.cordons.entries if c.scope is CordonScope.UNIT and c.name in unit_ids]
        self.cordons = Cordons(entries=tuple(c for c in self.cordons.entries if c not in gone))
        self.lost_cordons.note(gone, now_s)

    def usable(self, now_s: float) -> Sequence[KnownUnit]:
        """All that stay and may take models, without those whose place is out; if that leaves none, with them."""
        staying = [u for u in self.registry.staying() if self.cordon_on(u.report) is None]
        return [u for u in staying if not self.out_for_s(u.unit_id, now_s)] or staying

    @contextmanager
    def as_if(self, cordon: Cordon | None) -> Iterator[None]:
        """Has a cordon in force for as long as something is asked."""
        before, self.cordons = self.cordons, self.cordons if cordon is None else self.cordons.having(cordon)
        try:
            yield
        finally:
            self.cordons = before

    def homeless_after(self, cordon: Cordon, goal: Plan, found: Plan) -> Mapping[str, str]:
        """Returns which of `goal`'s models a cordon would leave without a replica if `found` were adopted, and why."""
        going = {u.unit_id for u in self.registry.staying() if cordon.holds_for(u.report)}
        return homeless_without(goal, found, going, self.pinned() - going)

    def cordon_on(self, report: UnitReport) -> Cordon | None:
        asked = self.cordons.on(report)
        if asked is None or not asked.drains:
            if report.wants_to_leave or report.unit_id in self.leaving_units:
                return Cordon(scope=CordonScope.UNIT, name=report.unit_id, drains=True)
            if report.node in self.going_nodes:
                return Cordon(scope=CordonScope.NODE, name=report.node, drains=True)
        return asked

    def cordoned(self) -> Mapping[str, Cordon]:
        """Returns by unit what keeps it from taking models."""
        told = ((u.unit_id, self.cordon_on(u.report)) for u in self.registry)
        return {unit_id: cordon for unit_id, cordon in told if cordon is not None}

    def pinned(self) -> frozenset[str]:
        """Units that keep what they have."""
        return frozenset(unit_id for unit_id, cordon in self.cordoned().items() if not cordon.drains)

    def drained(self) -> frozenset[str]:
        """Units that models move away from."""
        return frozenset(unit_id for unit_id, cordon in self.cordoned().items() if cordon.drains)

    def out_for_s(self, unit_id: str, now_s: float) -> float:
        return self._place_deaths.out_for_s(self._places.of(unit_id), now_s)

    def why_left_out(self, now_s: float) -> str:
        """Says which units take no models now, and why; "" where all do."""
        told = []
        for unit in self.registry.staying():
            if self.out_for_s(unit.unit_id, now_s):
                told.append(f"{unit.unit_id} is taken out for a while, as units keep dying in its place")
            elif (cordon := self.cordon_on(unit.report)) is not None:
                told.append(f"{unit.unit_id} is {'drained' if cordon.drains else 'cordoned'}")
        return "; ".join(told)

    def learn(self, report: UnitReport, host_s: float, now_s: float) -> None:
        """Takes in what a unit measured; `host_s`: what the estimate takes the host to add to each launch."""
        self.learning.evidence.hear(report, self._places.of(report.unit_id), host_s=host_s, now_s=now_s)
        self.neighbours.evidence.hear(report, now_s)

    def part_neighbours(
        self, model_of: Callable[[str], PlacementModel | None], estimator: Estimator, now_s: float
    ) -> None:
        """Brings up to date what plans count on of models that hurt each other."""
        capacities = {u.unit_id: u.capacity for u in self.registry}
        self.neighbours.settle(now_s, capacity_of=capacities.get, model_of=model_of, estimator=estimator)

    def hold_back(self, model: str, reason: str, now_s: float) -> None:
        """Loads it nowhere else for a while."""
        self._reasons[model] = reason
        self._load_deaths.take_out(model, now_s)

    def note_failed_turn(self, model: str, error: str, now_s: float) -> None:
        """Holds a model back that did not load in several turns: others waited meanwhile."""
        if self._load_deaths.note(model, now_s):
            self._reasons[model] = f"it did not load in its turns: {error}"

    def forgive(self, models: Iterable[str]) -> None:
        """Loads them again at once: an operator has changed them."""
        for model in models:
            self._load_deaths.forgive(model)

    def load_error(self, model: str) -> str:
        """Returns what a unit said that failed to load a model."""
        told = (s.error for u in self.registry for s in u.report.models if s.model == model)
        return next((error for error in told if error), "the units' logs say why")

    def held_back(self, model: str, now_s: float) -> str | None:
        """Returns why it is loaded nowhere else for now."""
        left_s = self._load_deaths.out_for_s(model, now_s)
        return f"loaded nowhere for {left_s:.0f} s: {self._reasons[model]}" if left_s else None

    def is_anything_ready_beside(self, unit_id: str) -> bool:
        return any(s.phase is ModelPhase.READY for u in self.registry if u.unit_id != unit_id for s in u.report.models)

    def any_back(self, now_s: float) -> bool:
        places, models = self._place_deaths.any_back(now_s), self._load_deaths.any_back(now_s)
        return places or models

    def kept(self) -> KeptDeaths:
        return KeptDeaths(
            slots=self._places.kept(),
            places=self._place_deaths.kept(),
            loads=self._load_deaths.kept(),
            reasons=dict(self._reasons),
        )

    def restore(self, deaths: KeptDeaths) -> None:
        self._places.restore(deaths.slots)
        self._place_deaths.restore(deaths.places)
        self._load_deaths.restore(deaths.loads)
        self._reasons |= deaths.reasons

    # ---- transition.FleetState ----

    def phase(self, unit_id: str, model: str) -> ModelPhase | None:
        phase = self._phases(unit_id).get(model)
        if phase is ModelPhase.READY and not self.serves(unit_id, model):
            return ModelPhase.LOADING
        return phase

    def total_blocks(self, unit_id: str) -> int:
        unit = self.registry.get(unit_id)
        return 0 if unit is None else unit.capacity.total_blocks

    def lingering(self, unit_id: str) -> frozenset[str]:
        told = frozenset(m for m in self._phases(unit_id) if not self.downloads(unit_id, m))
        unit = self.registry.get(unit_id)
        return told if unit is None else told | self._leases.on_the_way(unit.report)

    def downloads(self, unit_id: str, model: str) -> bool:
        """Says whether a unit has a model's files on their way to its disk, and nothing on its device yet."""
        unit = self.registry.get(unit_id)
        return unit is not None and any(s.model == model and s.is_downloading for s in unit.report.models)

    def serves(self, unit_id: str, model: str, family: Set[str] = frozenset()) -> bool:
        """Says whether a model is ready for sure, and those of `family` that the unit has."""
        unit = self.registry.get(unit_id)
        if unit is None or self._now_s - unit.heard_s > _TRUSTED_S:
            return False
        told = [s for s in unit.report.models if s.model == model or s.model in family]
        return any(s.model == model for s in told) and all(
            s.phase is ModelPhase.READY and not self._leases.has_dropped(unit_id, s) for s in told
        )

    def asleep(self) -> Asleep:
        return {unit.unit_id: unit.capacity.asleep for unit in self.registry}

    def _phases(self, unit_id: str) -> Mapping[str, ModelPhase]:
        """Of models that are on the device, or on the way: one is not there before its adapters are."""
        unit = self.registry.get(unit_id)
        statuses = [s for s in (() if unit is None else unit.report.models) if s.phase is not ModelPhase.ASLEEP]
        waits = {s.base for s in statuses if s.phase is ModelPhase.LOADING}
        return {
            s.model: ModelPhase.LOADING if s.phase is ModelPhase.READY and s.model in waits else s.phase
            for s in statuses
            if s.base is None
        }
