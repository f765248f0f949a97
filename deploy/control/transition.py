"""Moves from the plan in force to the one wanted, a step at a time, as far as what units report allows."""

from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Protocol

from deploy.control.control_rules import ControlRules
from deploy.control.control_state import KeptReplica
from pdmux_actor.lease import ModelPhase
from placement.plan import ModelPlacement, Plan, UnitPlan
from placement.plan_steps import Asleep, DrainModelStep, Fits, LoadModelStep, SetQuotasStep, Step, steps_between

_MINUTE_S = 60.0


class FleetState(Protocol):
    """Holds what units report."""

    def phase(self, unit_id: str, model: str) -> ModelPhase | None:
        """None: the unit does not have it."""
        ...

    def total_blocks(self, unit_id: str) -> int: ...

    def lingering(self, unit_id: str) -> frozenset[str]:
        """Models that the unit still has on its device although its lease no longer names them."""
        ...

    def asleep(self) -> Asleep: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionProgress:
    """The plan in force from now on, the steps just taken, and whether more are to come. `only_stays`: all that is left
    are drains of replicas that have not stayed for long enough.
    """

    plan: Plan
    taken: tuple[Step, ...]
    is_done: bool
    only_stays: bool


class Transition:
    """Takes every step whose time has come. A load waits for room beside what still leaves and, if its model is served
    already, for the move budget; a drain waits until another replica is ready and its own has stayed long enough; a
    unit's last quotas wait until nothing on it comes or goes. Steps are worked out anew each time: what fails meanwhile
    is simply not there. What leaves a unit that is drained waits neither for its residency nor for the move budget,
    what makes room for a model that is nowhere not for its residency.
    """

    def __init__(self, rules: ControlRules) -> None:
        self.rules = rules
        self._placed_s: dict[tuple[str, str], float] = {}
        self._moves_s: deque[float] = deque()
        self._quota_of_lingering: dict[tuple[str, str], int] = {}

    def adopt(self, unit: UnitPlan, now_s: float) -> None:
        """Replicas that were there before: their time counts from now, where nobody noted it."""
        self._placed_s = {(unit.unit_id, p.model): now_s for p in unit.models} | self._placed_s

    def kept(self) -> tuple[tuple[KeptReplica, ...], tuple[float, ...]]:
        """Replicas with the times of their placing, and when models that were served already were loaded."""
        placed = (
            KeptReplica(unit_id=unit_id, model=model, placed_s=placed_s)
            for (unit_id, model), placed_s in sorted(self._placed_s.items())
        )
        return tuple(placed), tuple(self._moves_s)

    def restore(self, replicas: Iterable[KeptReplica], moves_s: Iterable[float]) -> None:
        self._placed_s |= {(r.unit_id, r.model): r.placed_s for r in replicas}
        self._moves_s.extendleft(reversed(tuple(moves_s)))

    def placed_s(self, unit_id: str, model: str) -> float:
        """Returns since when a replica is there, as far as that counts."""
        return self._placed_s.get((unit_id, model), float("-inf"))

    def release(self, unit_id: str, model: str) -> None:
        """A replica has stayed for long enough."""
        self._placed_s.pop((unit_id, model), None)

    def forget(self, unit_id: str) -> None:
        self._placed_s = {k: s for k, s in self._placed_s.items() if k[0] != unit_id}
        self._quota_of_lingering = {k: q for k, q in self._quota_of_lingering.items() if k[0] != unit_id}

    def advance(
        self,
        current: Plan,
        goal: Plan,
        fleet: FleetState,
        *,
        fits: Fits,
        now_s: float,
        sized: Set[str],
        drained: Set[str] = frozenset(),
        unknown: Set[str] = frozenset(),
    ) -> TransitionProgress:
        """`sized` models are those that `fits` knows the memory of; of `unknown` ones nobody does."""
        attempt = _Attempt(current, goal, fleet, fits, self._quota_of_lingering, sized, drained, unknown)
        skipped: list[Step] = []
        taken: list[Step] = []
        for step in steps_between(current, goal, fits=fits, asleep=fleet.asleep()):
            if self._may(step, attempt, skipped=bool(skipped), now_s=now_s):
                self._note(step, attempt, now_s)
                attempt.take(step)
                taken.append(step)
            else:
                skipped.append(step)
        settled = not any(attempt.is_moving(u.unit_id) for u in goal.units)
        return TransitionProgress(
            plan=attempt.plan(),
            taken=tuple(taken),
            is_done=settled and not skipped,
            only_stays=settled and all(self._has_to_stay(s, attempt, now_s) for s in skipped),
        )

    def _has_to_stay(self, step: Step, attempt: "_Attempt", now_s: float) -> bool:
        """A drain that waits for nothing but its replica's time, or quotas that wait for such a drain."""
        match step:
            case DrainModelStep(interrupts=False):
                has_stayed = self._has_stayed(step, attempt, now_s)
                return not has_stayed and attempt.is_ready_elsewhere(step.unit_id, step.model)
            case SetQuotasStep():
                return True
            case _:
                return False

    def _may(self, step: Step, attempt: "_Attempt", *, skipped: bool, now_s: float) -> bool:
        match step:
            case SetQuotasStep():
                return attempt.quotas_fit(step) and (attempt.only_lowers(step) or not attempt.is_moving(step.unit_id))
            case LoadModelStep():
                is_move = attempt.is_ready_elsewhere(step.unit_id, step.model) and not attempt.flees(step.model)
                return attempt.has_room(step) and (not is_move or self._has_budget(now_s))
            case DrainModelStep(interrupts=True):
                return not skipped and not attempt.anything_moving()
            case DrainModelStep():
                if not attempt.is_wanted(step.model):
                    return True
                has_stayed = self._has_stayed(step, attempt, now_s)
                return has_stayed and attempt.is_ready_elsewhere(step.unit_id, step.model)

    def _has_stayed(self, step: DrainModelStep, attempt: "_Attempt", now_s: float) -> bool:
        if attempt.is_drained(step.unit_id) or attempt.is_awaited(step.unit_id):
            return True
        return now_s - self.placed_s(step.unit_id, step.model) >= self.rules.min_residency_s

    def _has_budget(self, now_s: float) -> bool:
        while self._moves_s and now_s - self._moves_s[0] > _MINUTE_S:
            self._moves_s.popleft()
        return len(self._moves_s) < self.rules.max_moves_per_min

    def _note(self, step: Step, attempt: "_Attempt", now_s: float) -> None:
        match step:
            case LoadModelStep():
                if attempt.is_ready_elsewhere(step.unit_id, step.model) and not attempt.flees(step.model):
                    self._moves_s.append(now_s)
                self._placed_s[step.unit_id, step.model] = now_s
                self._quota_of_lingering.pop((step.unit_id, step.model), None)
            case DrainModelStep():
                self._placed_s.pop((step.unit_id, step.model), None)
                self._quota_of_lingering[step.unit_id, step.model] = attempt.quota(step.unit_id, step.model)
            case SetQuotasStep():
                pass


class _Attempt:
    """The plan in force while steps are applied to it."""

    def __init__(
        self,
        current: Plan,
        goal: Plan,
        fleet: FleetState,
        fits: Fits,
        lingering: Mapping[tuple[str, str], int],
        sized: Set[str],
        drained: Set[str],
        unknown: Set[str],
    ) -> None:
        self._fleet = fleet
        self._sized = sized
        self._unknown = unknown
        self._drained = drained
        self._fits = fits
        self._lingering = lingering
        self._unplaced = goal.unplaced
        self._comes_to = {u.unit_id: {p.model for p in u.models} for u in goal.units}
        self._wanted = {m for models in self._comes_to.values() for m in models}
        self._held: dict[str, dict[str, int]] = {u.unit_id: {} for u in goal.units}
        self._held |= {u.unit_id: {p.model: p.quota_blocks for p in u.models} for u in current.units}
        self._homes: dict[str, set[str]] = {}
        for unit_id, models in self._held.items():
            for model in models:
                self._homes.setdefault(model, set()).add(unit_id)

    def plan(self) -> Plan:
        return Plan(
            units=tuple(
                UnitPlan(unit_id=i, models=tuple(ModelPlacement(model=m, quota_blocks=q) for m, q in held.items()))
                for i, held in self._held.items()
            ),
            unplaced=self._unplaced,
        )

    def take(self, step: Step) -> None:
        held = self._held[step.unit_id]
        match step:
            case SetQuotasStep():
                held |= step.quota_blocks
            case LoadModelStep():
                held[step.model] = step.quota_blocks
                self._homes.setdefault(step.model, set()).add(step.unit_id)
            case DrainModelStep():
                del held[step.model]
                self._homes[step.model].discard(step.unit_id)

    def quota(self, unit_id: str, model: str) -> int:
        return self._held[unit_id][model]

    def is_drained(self, unit_id: str) -> bool:
        return unit_id in self._drained

    def is_awaited(self, unit_id: str) -> bool:
        """A model that is nowhere comes to the unit."""
        return not all(self._homes.get(m) for m in self._comes_to.get(unit_id, ()))

    def flees(self, model: str) -> bool:
        """It has a replica on a unit that is drained."""
        return not self._drained.isdisjoint(self._homes.get(model, ()))

    def is_wanted(self, model: str) -> bool:
        return model in self._wanted

    def is_ready_elsewhere(self, unit_id: str, model: str) -> bool:
        homes = self._homes.get(model, set()) - {unit_id}
        return any(self._fleet.phase(home, model) is ModelPhase.READY for home in homes)

    def is_moving(self, unit_id: str) -> bool:
        """Something on the unit is still on its way in or out. A load that failed is no reason to wait."""
        if self._fleet.lingering(unit_id) - self._held[unit_id].keys():
            return True
        phases = (self._fleet.phase(unit_id, model) for model in self._held[unit_id])
        return any(phase not in (ModelPhase.READY, ModelPhase.FAILED) for phase in phases)

    def anything_moving(self) -> bool:
        return any(self.is_moving(unit_id) for unit_id in self._held)

    def only_lowers(self, step: SetQuotasStep) -> bool:
        return all(blocks <= self._held[step.unit_id].get(m, 0) for m, blocks in step.quota_blocks.items())

    def quotas_fit(self, step: SetQuotasStep) -> bool:
        if not step.quota_blocks.keys() <= self._held[step.unit_id].keys():
            return False  # a step before it was not taken
        return self._blocks_with(step.unit_id, step.quota_blocks) <= self._fleet.total_blocks(step.unit_id)

    def has_room(self, step: LoadModelStep) -> bool:
        """Counts what leaves for as long as it is there. Who has just fallen asleep is not in the next plan, and has no
        size until that comes; what nobody knows the memory of stays where it is.
        """
        blocks = self._blocks_with(step.unit_id, {step.model: step.quota_blocks})
        held = frozenset({*self._held[step.unit_id], step.model})
        leaving = self._fleet.lingering(step.unit_id) - held
        going = self._held[step.unit_id].keys() - self._comes_to.get(step.unit_id, set())
        is_sized = leaving | going | (held - self._unknown) <= self._sized
        has_memory = is_sized and self._fits(step.unit_id, held | leaving)
        return has_memory and blocks <= self._fleet.total_blocks(step.unit_id)

    def _blocks_with(self, unit_id: str, quotas: Mapping[str, int]) -> int:
        """A model that leaves keeps its blocks until it is gone."""
        leaving = self._fleet.lingering(unit_id) - self._held[unit_id].keys() - quotas.keys()
        kept = sum(self._lingering.get((unit_id, model), 0) for model in leaving)
        return kept + sum({**self._held[unit_id], **quotas}.values())


def failed_move(plan: Plan, goal: Plan, fleet: FleetState) -> tuple[str, str] | None:
    """Returns the unit and the model of a replica that does not load, where another is ready that shall go for it."""
    for unit in plan.units:
        for model in [p.model for p in unit.models if fleet.phase(unit.unit_id, p.model) is ModelPhase.FAILED]:
            homes = {u for u in plan.units_of(model) if fleet.phase(u, model) is ModelPhase.READY}
            if homes and not homes <= set(goal.units_of(model)):
                return unit.unit_id, model
    return None


def without_unit(plan: Plan, unit_id: str) -> Plan:
    return replace(plan, units=tuple(u for u in plan.units if u.unit_id != unit_id))


def without_replica(plan: Plan, unit_id: str, model: str) -> Plan:
    units = (
        replace(u, models=tuple(p for p in u.models if p.model != model)) if u.unit_id == unit_id else u
        for u in plan.units
    )
    return replace(plan, units=tuple(units))


def in_words(step: Step) -> str:
    match step:
        case LoadModelStep():
            return f"{'load' if step.wake_s is None else 'wake'} {step.model} on {step.unit_id}"
        case DrainModelStep():
            return f"drain {step.model} from {step.unit_id}" + (" (interrupts it)" if step.interrupts else "")
        case SetQuotasStep():
            quotas = ", ".join(f"{m} {q}" for m, q in sorted(step.quota_blocks.items()))
            return f"quotas on {step.unit_id}: {quotas}"
