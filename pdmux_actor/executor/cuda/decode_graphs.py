"""Captured decode steps: CUDA graphs per batch bucket and partition, within a budget of memory.

A captured graph keeps the SMs of the stream it was captured on, hence one for each partition (research: MuxWise §4.5
measured 6.2 % of memory for 6 partitions x 20 sizes). A capture takes about as long as three steps, so it is made when
no launch waits for it: those that are likely (capture_plan.py) when a model is attached, others while the lanes are
idle. A shape that comes without a graph runs launch by launch; one that comes again and again is captured even if the
lanes are never idle, and if the budget is spent, in place of the one that has not been used for longest.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

_LOG = logging.getLogger(__name__)

BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)

# A step that is launched one by one costs the host some 3 ms more than its graph, a capture 20 to 25 ms.
_MISSES_WORTH_A_CAPTURE = 8

LOGITS = "logits"  # the part of a step up to the logits, which all samplings share

Step = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphKey:
    """`part` is LOGITS or what comes after them, see device_sampler.SamplingKind. `first_sm` is where the stream's SMs
    begin: other than 0 when decode is divided among models.
    """

    model: str
    bucket: int
    decode_sms: int
    part: str
    first_sm: int = 0


@dataclass(frozen=True, slots=True)
class PlannedCapture:
    key: GraphKey
    stream: Any  # of the SMs


class Capture(Protocol):
    def __call__(self, step: Step, stream: Any) -> tuple[Step, int]:
        """Captures `step` on `stream` and returns what replays it, and the bytes of device memory that this graph holds
        by itself.

        `step` is run before capture, and must be harmless then. Raises RuntimeError where it cannot be captured.
        """
        ...

    def shared_bytes(self) -> int:
        """Device memory of all graphs' intermediate values."""
        ...

    def renew(self) -> None:
        """No graph is left."""
        ...


class DecodeGraphs:
    """`capture` None runs every step launch by launch."""

    def __init__(self, capture: Capture | None, budget_bytes: int) -> None:
        self._capture = capture if budget_bytes > 0 else None
        self.budget_bytes = budget_bytes
        self._graphs: dict[GraphKey, tuple[Step, int]] = {}  # the one that was used last is the last
        self._planned: dict[GraphKey, PlannedCapture] = {}
        self._misses: dict[GraphKey, int] = {}
        self._failed: set[GraphKey] = set()
        self._shared_bytes = 0
        self._has_warned = False
        self.num_evicted = 0
        self.num_in_traffic = 0  # captures for which a launch waited

    @property
    def used_bytes(self) -> int:
        graphs = list(self._graphs.values())  # at once: a thread that loads a model asks, too
        return self._shared_bytes + sum(own_bytes for _, own_bytes in graphs)

    @property
    def unused_budget_bytes(self) -> int:
        """Returns what graphs may take yet: what they have taken already nobody has free."""
        return max(0, self.budget_bytes - self.used_bytes)

    @property
    def num_failed(self) -> int:
        """Shapes that could not be captured."""
        return len(self._failed)

    @property
    def num_planned(self) -> int:
        """Captures that wait for a moment without launches."""
        return len(self._planned)

    def __len__(self) -> int:
        return len(self._graphs)

    def facts(self) -> dict[str, int]:
        """Returns how many steps were captured, could not be, made room for others, had a launch wait for them and
        wait to be captured; and the device memory that graphs hold.
        """
        return {
            "graphs": len(self),
            "graphs_that_failed": self.num_failed,
            "graphs_evicted": self.num_evicted,
            "graphs_in_traffic": self.num_in_traffic,
            "graphs_planned": self.num_planned,
            "graph_bytes": self.used_bytes,
        }

    def plan(self, captures: Iterable[PlannedCapture]) -> None:
        """Adds captures, the likeliest first, which wait for `next_planned`."""
        if self._capture is not None:
            self._planned.update((planned.key, planned) for planned in captures)

    def next_planned(self) -> PlannedCapture | None:
        """Takes the likeliest one that is not captured yet out of the plan. Once the budget is spent only those are
        left that launches have asked for: they alone may take the place of others.
        """
        while self._planned:
            asked_for = self._most_missed()
            if asked_for is None and self.used_bytes >= self.budget_bytes:
                self._planned.clear()
                break
            planned = self._planned.pop(asked_for or next(iter(self._planned)))
            if self._can_capture(planned.key):
                return planned
        return None

    def step(self, key: GraphKey, step: Step) -> Step:
        """Returns the captured `step`, or `step` itself where it is not captured."""
        found = self._graphs.pop(key, None)
        if found is None:
            return step
        self._graphs[key] = found
        return found[0]

    def wants(self, key: GraphKey, stream: Any) -> bool:
        """Returns whether a launch shall `capture` before it goes on. Notes what it lacks otherwise."""
        if not self._can_capture(key):
            return False
        misses = self._misses[key] = self._misses.get(key, 0) + 1
        if misses < _MISSES_WORTH_A_CAPTURE:
            self._planned.setdefault(key, PlannedCapture(key, stream))
            return False
        if self._shared_bytes >= self.budget_bytes and not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "intermediate values of %d decode graphs fill their budget of %d bytes; further shapes run launch by"
                " launch",
                len(self._graphs),
                self.budget_bytes,
            )
        if self._shared_bytes >= self.budget_bytes:
            return False
        self.num_in_traffic += 1
        return True

    def capture(self, key: GraphKey, step: Step, stream: Any) -> None:
        """Captures `step`, which runs meanwhile: the caller's inputs must be padding."""
        assert self._capture is not None, "steps are not captured"
        self._planned.pop(key, None)
        self._misses.pop(key, None)
        while self._graphs and self.used_bytes >= self.budget_bytes:
            self._evict(next(iter(self._graphs)))
        try:
            self._graphs[key] = self._capture(step, stream)
        except RuntimeError:  # launched one by one it may work; if the device is lost, that says so
            _LOG.exception("a decode step cannot be captured and runs launch by launch: %s", key)
            self._failed.add(key)
        self._shared_bytes = self._capture.shared_bytes() if self._graphs else 0

    def forget_model(self, model: str) -> None:
        """Memory of intermediate values stays with the graphs that are left, and goes with the last one."""
        self._graphs = {key: graph for key, graph in self._graphs.items() if key.model != model}
        self._planned = {key: planned for key, planned in self._planned.items() if key.model != model}
        self._misses = {key: misses for key, misses in self._misses.items() if key.model != model}
        self._failed = {key for key in self._failed if key.model != model}
        if not self._graphs:
            self._let_go()

    def clear(self) -> None:
        """A graph belongs to the context of its stream, and must go before it."""
        self._graphs.clear()
        self._planned.clear()
        self._misses.clear()
        self._let_go()

    def _can_capture(self, key: GraphKey) -> bool:
        return self._capture is not None and key not in self._graphs and key not in self._failed

    def _most_missed(self) -> GraphKey | None:
        waiting = [key for key in self._planned if key in self._misses]
        return max(waiting, key=lambda key: self._misses[key], default=None)

    def _evict(self, key: GraphKey) -> None:
        del self._graphs[key]  # the driver keeps one that is being replayed until it is over
        self.num_evicted += 1
        if not self._graphs:
            self._let_go()

    def _let_go(self) -> None:
        self._shared_bytes = 0
        if self._capture is not None:
            self._capture.renew()


def bucket_of(num_sequences: int) -> int:
    """The least bucket that holds the batch; batches beyond the largest are padded to a multiple of it.

    >>> bucket_of(1), bucket_of(17), bucket_of(256), bucket_of(300)
    (1, 24, 256, 512)
    """
    if num_sequences > BUCKETS[-1]:
        return -(-num_sequences // BUCKETS[-1]) * BUCKETS[-1]
    return BUCKETS[bisect_left(BUCKETS, num_sequences)]


class CudaGraphCapture:
    """Captures with torch's CUDA graphs; all share one memory pool. In it torch's allocator gives what one graph has
    left to others of the same stream, that is of the same SMs, where one graph is replayed after the other.

    torch.cuda.graph would do, but it waits for the whole device and gives the allocator's free memory back: a prefill
    in flight would be waited for, and the next one would allocate anew.

    torch's allocator never takes a pool again whose last graph has gone, nor one in which a capture broke off: both
    would make every later capture fail.
    """

    def __init__(self, cuda: Any) -> None:
        """`cuda` is torch.cuda, or whatever answers like it."""
        self._cuda = cuda
        self._pools: list[Any] = []  # of graphs that are there; the last one takes the next capture

    def renew(self) -> None:
        self._pools = []

    def __call__(self, step: Step, stream: Any) -> tuple[Step, int]:
        with self._cuda.stream(stream):
            step()  # compiles kernels and makes cuBLAS's workspace, neither of which can be captured
        stream.synchronize()
        if not self._pools:
            self._pools.append(self._cuda.graph_pool_handle())
        before_bytes = self._driver_bytes()
        graph = self._cuda.CUDAGraph()
        with self._cuda.stream(stream):
            # Another thread may be loading a model, which allocates: this capture is none of its business.
            graph.capture_begin(pool=self._pools[-1], capture_error_mode="thread_local")
            try:
                step()
                graph.capture_end()
            except BaseException:
                self._pools.append(self._cuda.graph_pool_handle())
                with suppress(RuntimeError):  # ends the stream's capture; why it failed is on its way up
                    graph.capture_end()
                raise
        return graph.replay, max(0, self._driver_bytes() - before_bytes)

    def shared_bytes(self) -> int:
        segments = [segment for pool in self._pools for segment in self._cuda.memory.memory_snapshot(pool)]
        return sum(segment["total_size"] for segment in segments)

    def _driver_bytes(self) -> int:
        """What the device lost to others than torch's allocator: a graph's nodes are among it."""
        free_bytes, total_bytes = self._cuda.mem_get_info()
        lost_bytes: int = total_bytes - free_bytes - self._cuda.memory_reserved()
        return lost_bytes
