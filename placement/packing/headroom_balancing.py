"""The least headroom of a plan, raised: the fullest unit gives load away, or swaps models with a unit that has room."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from placement.packing.packing import Packing, Parts

_ENOUGH = 4.0  # times the load: more of it shortens waits little
_LEAST_GAIN = 1.02
_SHARES = (0.5, 0.25, 0.75, 1.0)  # of a replica's load; with all of it the replica moves
_MOST_TRIED = 12  # units, the roomiest
_MOST_STEPS = 300


def balance_headroom(packing: Packing, *, moves: bool = True, is_time_up: Callable[[], bool] = lambda: False) -> None:
    """The fullest unit first; one that nothing relieves stays as it is. Every step leaves all units that it touches
    with more headroom than the fullest of them had. Without `moves` replicas are added and none leaves its unit.
    """
    stuck: set[int] = set()
    for _ in range(_MOST_STEPS):
        full = [u for u in np.flatnonzero(packing.factor < _ENOUGH).tolist() if u not in stuck and packing.parts[u]]
        if not full or is_time_up():
            return
        fullest = min(full, key=lambda u: (packing.factor[u], u))
        relief = _Relief(packing, fullest, is_time_up)
        relief.share(_SHARES if moves else _SHARES[:-1])
        if moves:
            relief.swap()
        if moves and not relief.best:
            relief.displace()
        if relief.best:
            packing.rearrange(relief.best)
        else:
            stuck.add(fullest)


@dataclass(slots=True, eq=False)
class _Relief:
    """The best change for the unit: what units would hold, and the least headroom that they would have then. It is the
    best so far once time is up.
    """

    packing: Packing
    unit: int
    is_time_up: Callable[[], bool]
    best: Mapping[int, Parts] = field(default_factory=dict)
    least: float = field(init=False)
    roomiest: list[int] = field(init=False)

    def __post_init__(self) -> None:
        factor = self.packing.factor
        self.least = _LEAST_GAIN * float(factor[self.unit])
        others = np.flatnonzero((self.packing.kind >= 0) & (factor > self.least))
        ordered = others[np.argsort(-factor[others], kind="stable")].tolist()
        self.roomiest = list(islice(self._unlike(u for u in ordered if u != self.unit), _MOST_TRIED))

    def _unlike(self, units: Iterable[int]) -> Iterator[int]:
        """Of idle units of a kind the first stands for all."""
        idle_kinds: set[int] = set()
        for unit in units:
            if not self.packing.parts[unit]:
                if int(self.packing.kind[unit]) in idle_kinds:
                    continue
                idle_kinds.add(int(self.packing.kind[unit]))
            yield unit

    def share(self, shares: Sequence[float]) -> None:
        """Some of a replica's load goes to another unit, or all of it."""
        parts = self.packing.parts
        for model, share, kept, factor in self._gifts(shares):
            given = share * parts[self.unit][model]
            for taker in self.roomiest:
                if _may_give(self.packing, model, taker, all_of_it=share == 1):
                    self._consider({self.unit: kept, taker: _with(parts[taker], model, given)}, {self.unit: factor})

    def swap(self) -> None:
        """A replica changes places with another one."""
        parts = self.packing.parts
        for model, rate in parts[self.unit].items():
            for taker in (u for u in self.roomiest if model not in parts[u]):
                if self.is_time_up():
                    return
                for other in sorted(parts[taker].keys() - parts[self.unit].keys()):
                    back = _with(_without(parts[self.unit], model), other, parts[taker][other])
                    self._consider({self.unit: back, taker: _with(_without(parts[taker], other), model, rate)}, {})

    def displace(self) -> None:
        """The taker has no room yet: it gives a replica to a third unit."""
        parts = self.packing.parts
        for model, share, kept, factor in self._gifts(_SHARES):
            for taker in self.roomiest:
                if not _may_give(self.packing, model, taker, all_of_it=share == 1):
                    continue
                for out in sorted(parts[taker].keys() - {model}):
                    if self.is_time_up():
                        return
                    taken = _with(_without(parts[taker], out), model, share * parts[self.unit][model])
                    taken_factor = self.packing.factor_of(taker, taken)
                    if taken_factor > self.least:
                        known = {self.unit: factor, taker: taken_factor}
                        for third, of_third in self._homes_for(out, taker):
                            self._consider({self.unit: kept, taker: taken, third: of_third}, known)

    def _gifts(self, shares: Sequence[float]) -> Iterator[tuple[int, float, Parts, float]]:
        """Models, shares of their load that leave, what the unit keeps and its factor then, if that is a gain."""
        mine = self.packing.parts[self.unit]
        for model, rate in mine.items():
            for share in shares:
                kept = _without(mine, model) if share == 1 else {**mine, model: (1 - share) * rate}
                factor = self.packing.factor_of(self.unit, kept)
                if factor > self.least:
                    yield model, share, kept, factor

    def _homes_for(self, model: int, leaves: int) -> Iterator[tuple[int, Parts]]:
        parts, rate = self.packing.parts, self.packing.parts[leaves][model]
        newest = self.packing.roomiest(model, rate, above=self.least)
        homes = [] if newest is None else [newest[1]]
        if len(self.packing.homes[model]) > max(1, self.packing.instance.models[model].min_replicas):
            homes += sorted(self.packing.homes[model])
        return ((u, _with(parts[u], model, rate)) for u in homes if u not in (self.unit, leaves))

    def _consider(self, change: Mapping[int, Parts], known: Mapping[int, float]) -> None:
        """`known`: factors that were worked out before."""
        factors = dict(known)
        for unit in change.keys() - known.keys():
            factors[unit] = self.packing.factor_of(unit, change[unit])
            if factors[unit] <= self.least:
                return
        headroom = min(factors.values())
        if headroom > self.least and (headroom >= 1 or self._serves_no_less(change, factors)):
            self.best, self.least = change, headroom

    def _serves_no_less(self, change: Mapping[int, Parts], factors: Mapping[int, float]) -> bool:
        packing = self.packing
        now = sum(_load(packing.parts[u]) * min(1.0, float(packing.factor[u])) for u in change)
        return sum(_load(parts) * min(1.0, factors[u]) for u, parts in change.items()) >= now


def _may_give(packing: Packing, model: int, taker: int, *, all_of_it: bool) -> bool:
    """Within the bounds on its replicas."""
    wanted, homes = packing.instance.models[model], packing.homes[model]
    change = (taker not in homes) - all_of_it
    return change == 0 or max(1, wanted.min_replicas) <= len(homes) + change <= wanted.max_replicas


def _load(parts: Parts) -> float:
    return sum(parts.values())


def _with(parts: Parts, model: int, rate: float) -> Parts:
    return {**parts, model: parts.get(model, 0.0) + rate}


def _without(parts: Parts, model: int) -> Parts:
    return {m: rate for m, rate in parts.items() if m != model}
