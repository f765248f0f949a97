"""The way from one plan to another, in steps that keep served models served."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from placement.estimation.quotas import proportional
from placement.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SetQuotasStep:
    unit_id: str
    quota_blocks: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadModelStep:
    """Done when the unit reports the model ready. Until the unit's last SetQuotasStep the quota may be a small one.
    `wake_s`: what it takes where the weights are in the unit's host memory; None: they are read.
    """

    unit_id: str
    model: str
    quota_blocks: int
    wake_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainModelStep:
    """`interrupts`: it is the model's last replica and the model has to move, but no unit has room for both. Between
    this step and its next load the model is not served.
    """

    unit_id: str
    model: str
    interrupts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveCost:
    """`loads` includes `wakes`. `load_bytes`: weights that are read. `seconds`: until the last step is done, if units
    work side by side and each takes its own steps one after the other. `interrupted` models are not served in between.
    """

    loads: int
    drains: int
    load_bytes: int
    seconds: float
    interrupted: tuple[str, ...]
    wakes: int = 0


Step = SetQuotasStep | LoadModelStep | DrainModelStep
Fits = Callable[[str, frozenset[str]], bool]
Asleep = Mapping[str, Mapping[str, float]]
"""By unit: models whose weights are in its host memory, with the seconds that waking each takes."""


def steps_between(old: Plan, new: Plan, *, fits: Fits, asleep: Asleep = MappingProxyType({})) -> tuple[Step, ...]:
    """Steps to take one after the other. `fits(unit_id, models)` says whether a unit's memory holds these models; it
    must hold for every unit of `new`.

    Loads come before drains wherever memory admits, the quickest wakes before other loads. After every step the quotas
    of a unit sum to no more than in the larger of the two plans, so they never exceed its pool.
    """
    return _Transition(old, new, fits, asleep).steps()


def move_cost(
    steps: Sequence[Step],
    weight_bytes: Mapping[str, int],
    *,
    load_bytes_per_s: float = 2e9,
    drain_s: float = 10.0,
) -> MoveCost:
    """The defaults are a fast local disk, and requests of a few hundred tokens that run to their end."""
    loads = [s for s in steps if isinstance(s, LoadModelStep)]
    drains = [s for s in steps if isinstance(s, DrainModelStep)]
    busy_s: defaultdict[str, float] = defaultdict(float)
    for load in loads:
        read_s = weight_bytes[load.model] / load_bytes_per_s
        busy_s[load.unit_id] += read_s if load.wake_s is None else load.wake_s
    for drain in drains:
        busy_s[drain.unit_id] += drain_s
    return MoveCost(
        loads=len(loads),
        drains=len(drains),
        load_bytes=sum(weight_bytes[load.model] for load in loads if load.wake_s is None),
        seconds=max(busy_s.values(), default=0.0),
        interrupted=tuple(sorted({d.model for d in drains if d.interrupts})),
        wakes=sum(load.wake_s is not None for load in loads),
    )


class _Transition:
    def __init__(self, old: Plan, new: Plan, fits: Fits, asleep: Asleep) -> None:
        self._fits = fits
        self._asleep = asleep
        self._old = {u.unit_id: {p.model: p.quota_blocks for p in u.models} for u in old.units}
        self._new = {u.unit_id: {p.model: p.quota_blocks for p in u.models} for u in new.units}
        self._held = {u: set(models) for u, models in self._old.items()}
        self._units = sorted(self._old.keys() | self._new.keys())
        added = [(u, m) for u in self._units for m in sorted(self._added(u))]
        self._loads = sorted(added, key=lambda pair: (self._wake_s(*pair) is None, self._wake_s(*pair) or 0.0))
        self._drains = [(u, m) for u in self._units for m in sorted(self._removed(u))]
        self._steps: list[Step] = []

    def steps(self) -> tuple[Step, ...]:
        on_the_way = {u: self._transitional_quotas(u) for u in self._units}
        self._set_quotas({u: self._old.get(u, {}) for u in self._units}, on_the_way)
        while self._loads or self._drains:
            self._load_what_fits(on_the_way)
            if not self._drain_what_is_spare() and (self._loads or self._drains):
                self._interrupt_one()
        self._set_quotas(on_the_way, {u: self._new.get(u, {}) for u in self._units})
        return tuple(self._steps)

    def _wake_s(self, unit_id: str, model: str) -> float | None:
        return self._asleep.get(unit_id, {}).get(model)

    def _added(self, unit_id: str) -> set[str]:
        return self._new.get(unit_id, {}).keys() - self._old.get(unit_id, {}).keys()

    def _removed(self, unit_id: str) -> set[str]:
        return self._old.get(unit_id, {}).keys() - self._new.get(unit_id, {}).keys()

    def _transitional_quotas(self, unit_id: str) -> Mapping[str, int]:
        """For all models of both plans at once: who stays gets the lesser of both quotas, and who comes or goes shares
        the rest in proportion, so that old requests end and new ones start.
        """
        old, new = self._old.get(unit_id, {}), self._new.get(unit_id, {})
        if not self._added(unit_id):
            return {model: min(blocks, new.get(model, blocks)) for model, blocks in old.items()}
        staying = {m: min(old[m], new[m]) for m in old.keys() & new.keys()}
        moving = {m: (old | new)[m] for m in old.keys() ^ new.keys()}
        pool = max(sum(old.values()), sum(new.values()))
        return staying | proportional(min(pool - sum(staying.values()), sum(moving.values())), moving)

    def _set_quotas(self, before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]) -> None:
        """Of the models that are there now."""
        for unit_id in self._units:
            held = sorted(self._held.get(unit_id, ()))
            changed = {m: after[unit_id][m] for m in held if before[unit_id].get(m) != after[unit_id][m]}
            if changed:
                self._steps.append(SetQuotasStep(unit_id=unit_id, quota_blocks=changed))

    def _load_what_fits(self, quotas: Mapping[str, Mapping[str, int]]) -> None:
        for unit_id, model in list(self._loads):
            held = self._held.setdefault(unit_id, set())
            if self._fits(unit_id, frozenset({*held, model})):
                held.add(model)
                self._loads.remove((unit_id, model))
                quota, wake_s = quotas[unit_id][model], self._wake_s(unit_id, model)
                self._steps.append(LoadModelStep(unit_id=unit_id, model=model, quota_blocks=quota, wake_s=wake_s))

    def _drain_what_is_spare(self) -> bool:
        """Replicas of models that have another one, or that the new plan does not serve at all."""
        served = {m for models in self._new.values() for m in models}
        spare = [
            (unit_id, model)
            for unit_id, model in self._drains
            if model not in served or any(model in held for u, held in self._held.items() if u != unit_id)
        ]
        if spare:
            self._drain(*spare[0], interrupts=False)
        return bool(spare)

    def _interrupt_one(self) -> None:
        """A model that cannot move because nothing fits where it goes: make room there."""
        waited_for = {unit_id for unit_id, _ in self._loads}
        blockers = [(unit_id, model) for unit_id, model in self._drains if unit_id in waited_for]
        assert blockers, f"the new plan does not fit: {self._loads}"
        self._drain(*blockers[0], interrupts=True)

    def _drain(self, unit_id: str, model: str, *, interrupts: bool) -> None:
        self._drains.remove((unit_id, model))
        self._held[unit_id].remove(model)
        self._steps.append(DrainModelStep(unit_id=unit_id, model=model, interrupts=interrupts))
