"""One stretch of a GPU's memory for each lane, in which its launches keep their intermediate values.

torch's allocator keeps memory for each stream by itself, and a lane has a stream for each share of SMs: what launches
of one share have left, those of another cannot use. A lane has one launch at a time, so that one stretch serves all its
streams.
"""

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

_ALIGNMENT_BYTES = 256
_MOST_VIEWS = 256
_NOTHING = nullcontext()

Key = int
"""Of a prefill batch between two slices."""


class LaneArena:
    """Passing values lie one after the other from its beginning, kept ones before its end. What finds no room comes
    from torch's allocator.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.empty(0, dtype=torch.uint8, device=device)
        self._passing_end = 0
        self._kept: dict[Key, list[tuple[int, int]]] = {}  # from, to
        self._views: dict[tuple[int, Sequence[int], torch.dtype], Tensor] = {}
        self._beyond_bytes = 0  # of values that are passing now
        self.most_taken_bytes = 0
        self.most_beyond_bytes = 0

    @property
    def num_bytes(self) -> int:
        return len(self._memory)

    @property
    def holds_any(self) -> bool:
        return bool(self._kept)

    def resize(self, num_bytes: int) -> None:
        """No launch of the lane may be in flight, and nothing kept."""
        assert not self._kept, "kept values would be lost"
        self._views.clear()
        self._memory = self._memory[:0].clone()  # before the new one is made: there is room for one
        self._memory = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)

    def take(self, shape: Sequence[int], dtype: torch.dtype, key: Key | None) -> Tensor:
        """`key` None: until the innermost `passing` ends."""
        num_bytes = _aligned(math.prod(shape) * dtype.itemsize)
        first = self._passing_end if key is None else self._kept_place(num_bytes)
        least_kept = self._least_kept()
        if first < self._passing_end or (key is None and first + num_bytes > least_kept):
            self._beyond_bytes += num_bytes
            self.most_beyond_bytes = max(self.most_beyond_bytes, self._beyond_bytes)
            return torch.empty(shape, dtype=dtype, device=self._device)
        if key is None:
            self._passing_end = first + num_bytes
        else:
            self._kept.setdefault(key, []).append((first, first + num_bytes))
            least_kept = min(least_kept, first)
        self.most_taken_bytes = max(self.most_taken_bytes, self._passing_end + len(self._memory) - least_kept)
        return self._view(first, shape, dtype)

    @contextmanager
    def passing(self) -> Iterator[None]:
        end, beyond_bytes = self._passing_end, self._beyond_bytes
        try:
            yield
        finally:
            self._passing_end, self._beyond_bytes = end, beyond_bytes

    def let_go(self, key: Key) -> None:
        self._kept.pop(key, None)

    def _least_kept(self) -> int:
        return min((first for of_key in self._kept.values() for first, _ in of_key), default=len(self._memory))

    def _kept_place(self, num_bytes: int) -> int:
        """The last place with room, or one that is negative or among the passing values."""
        end = len(self._memory) // _ALIGNMENT_BYTES * _ALIGNMENT_BYTES
        for first, last in sorted((extent for of_key in self._kept.values() for extent in of_key), reverse=True):
            if end - num_bytes >= last:
                break
            end = first
        return end - num_bytes

    def _view(self, first: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Layers ask for the same ones again and again, and to make one costs microseconds."""
        found = self._views.get((first, shape, dtype))
        if found is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            num_bytes = math.prod(shape) * dtype.itemsize
            found = self._memory[first : first + num_bytes].view(dtype).view(*shape)
            self._views[first, shape, dtype] = found
        return found


class Workspace(threading.local):
    """Says where this thread's operations put their results: into the arena of the lane whose launch it enqueues, else
    wherever torch's allocator says. A thread that loads a model uses no lane's.
    """

    def __init__(self) -> None:
        self._arena: LaneArena | None = None
        self._depth = 0  # of `passing`
        self._key: Key | None = None

    @contextmanager
    def using(self, arena: LaneArena | None) -> Iterator[None]:
        before = self._arena, self._depth, self._key
        self._arena, self._depth, self._key = arena, 0, None
        try:
            yield
        finally:
            self._arena, self._depth, self._key = before

    def passing(self) -> AbstractContextManager[None]:
        """Ends the use of all that is made within it."""
        return _NOTHING if self._arena is None else self._passing(self._arena)

    @contextmanager
    def keeping(self, key: Key) -> Iterator[None]:
        """Keeps what is made within it until `let_go`."""
        before, self._key = self._key, key
        try:
            yield
        finally:
            self._key = before

    def let_go(self, key: Key) -> None:
        if self._arena is not None:
            self._arena.let_go(key)

    @property
    def takes(self) -> bool:
        """Returns whether `empty` asks an arena."""
        return self._arena is not None and (self._key is not None or self._depth > 0)

    def empty(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Not initialised. `shape`: a tuple."""
        if self._arena is None or not self.takes:
            return torch.empty(shape, dtype=dtype, device=device)
        return self._arena.take(shape, dtype, self._key)

    @contextmanager
    def _passing(self, arena: LaneArena) -> Iterator[None]:
        self._depth += 1
        try:
            with arena.passing():
                yield
        finally:
            self._depth -= 1


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
