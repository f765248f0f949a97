"""Predicts how much longer decode takes because prefill runs beside it, at worst (MuxWise §3.3.2).

Partitions divide SMs, not memory bandwidth, so a decode step slows down by an amount that nobody can compute. The guard
answers with the most that was seen in the same cell of a coarse grid, and with a prior where nothing was seen. Of many
observations it leaves the highest out: a process is put aside now and then, on any machine that is not all its own.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from profiler.latency import ChunkShape

# MuxWise saw at most 20 % on A100 and 30 % on H100 (§3.3.2).
DEFAULT_PRIOR = 1.3
WINDOW = 32  # observations that a cell remembers: what it said an hour ago may be another workload's
_ENOUGH = 4  # observations before a cell may say less than the prior
_MANY = 8  # observations of which the highest may be a stall


class GuardCell(NamedTuple):
    """Decode share and powers of four of the five quantities; 0 is a bucket of its own.

    A tuple, since it is a key of every prediction beside a prefill: a dataclass takes several times as long to hash.
    """

    decode_sms: int
    prefill_new: int
    prefill_reused: int
    decode_batch: int
    decode_reused: int

    @classmethod
    def of(cls, decode_sms: int, beside: Sequence[ChunkShape], context_tokens: Sequence[int]) -> "GuardCell":
        return cls(decode_sms, *_batches(beside, context_tokens))


_Batches = tuple[int, int, int, int]  # a cell's on any share


def _batches(beside: Sequence[ChunkShape], context_tokens: Sequence[int]) -> _Batches:
    new, reused = sum([chunk.new_tokens for chunk in beside]), sum([chunk.context_tokens for chunk in beside])
    return (
        power_of_four(new),
        power_of_four(reused),
        power_of_four(len(context_tokens)),
        power_of_four(sum(context_tokens)),
    )


def power_of_four(count: int) -> int:
    """Index of the bucket [4^(i-1), 4^i) that holds `count`.

    >>> [power_of_four(n) for n in (0, 1, 3, 4, 15, 16, 2048)]
    [0, 1, 1, 2, 2, 3, 6]
    """
    return 0 if count <= 0 else (count.bit_length() + 1) // 2


def worst_of(seen: Sequence[float], before: float) -> float:
    """The most of the latest observations, or of what was known before while they are few; of many the most but one.

    >>> worst_of([1.1], 1.3), worst_of([1.0, 1.1, 1.2, 1.1], 1.3), worst_of([1.1] * 8 + [3.0], 1.3)
    (1.3, 1.2, 1.1)
    """
    if len(seen) < _ENOUGH:
        return max(before, *seen) if seen else before
    return max(seen) if len(seen) < _MANY else sorted(seen)[-2]


class SlowdownsByShare:
    """Answers for the same batches on one share after another, each looked up once until something is observed of
    them.
    """

    __slots__ = ("_batches", "_known", "_slowdown")

    def __init__(self, batches: _Batches, slowdown: Callable[[GuardCell], float]) -> None:
        self._batches, self._slowdown = batches, slowdown
        self._known: dict[int, float] = {}

    def on(self, decode_sms: int) -> float:
        known = self._known.get(decode_sms)
        if known is None:
            known = self._known[decode_sms] = self._slowdown(GuardCell(decode_sms, *self._batches))
        return known

    def forget(self, decode_sms: int) -> None:
        self._known.pop(decode_sms, None)


class ContentionGuard:
    """Maximum slowdown per cell, refined by what runs."""

    def __init__(self, *, prior: float = DEFAULT_PRIOR, grid: Mapping[GuardCell, float] | None = None) -> None:
        """`grid` holds maxima that were profiled offline; they stand until the cell has seen enough itself."""
        self._prior = prior
        self._grid = dict(grid or {})
        self._seen: dict[GuardCell, deque[float]] = {}
        self._learned: dict[GuardCell, float] = {}  # what those say
        self._by_share: dict[_Batches, SlowdownsByShare] = {}
        self._moved = 0

    @property
    def cells_moved(self) -> int:
        """Observations that changed what their cell says."""
        return self._moved

    def slowdown(self, cell: GuardCell) -> float:
        """Returns the slowdown of decode, at least 1."""
        learned = self._learned.get(cell)
        return self._grid.get(cell, self._prior) if learned is None else learned

    def by_share(self, beside: Sequence[ChunkShape], context_tokens: Sequence[int]) -> SlowdownsByShare:
        """Returns `slowdown` of these batches, share by share."""
        batches = _batches(beside, context_tokens)
        known = self._by_share.get(batches)
        if known is None:
            known = self._by_share[batches] = SlowdownsByShare(batches, self.slowdown)
        return known

    def observe(self, cell: GuardCell, slowdown: float) -> None:
        """`slowdown` is measured / solo-run latency of one decode step; below 1 counts as 1."""
        if not math.isfinite(slowdown):
            return
        before = self.slowdown(cell)
        seen = self._seen.get(cell)
        if seen is None:
            seen = self._seen[cell] = deque(maxlen=WINDOW)
        seen.append(max(1.0, slowdown))
        now = self._learned[cell] = worst_of(seen, self._grid.get(cell, self._prior))
        if (known := self._by_share.get(cell[1:])) is not None:
            known.forget(cell.decode_sms)
        self._moved += now != before

    def learned(self) -> Iterator[tuple[GuardCell, float]]:
        """The same of the cells that this guard itself has seen enough of."""
        for cell in sorted(cell for cell, seen in self._seen.items() if len(seen) >= _ENOUGH):
            yield cell, self.slowdown(cell)

    def items(self) -> Iterator[tuple[GuardCell, float]]:
        """Returns what the guard says of every cell it knows, in a stable order; another guard takes it as its
        `grid`.
        """
        for cell in sorted({*self._grid, *self._seen}):
            yield cell, self.slowdown(cell)
