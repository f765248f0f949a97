"""Captured decode steps: one CUDA graph per batch bucket and partition, made when first needed, within a budget.

A captured graph keeps the SMs of the stream it was captured on, hence one for each partition (research: MuxWise §4.5
measured 6.2 % of memory for 6 partitions x 20 sizes).
"""

import logging
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

_LOG = logging.getLogger(__name__)

BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)

Step = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphKey:
    """`sampling` names what the step does after the logits; see device_sampler.SamplingKind. `first_sm` is where the
    stream's SMs begin: other than 0 when decode is divided among models.
    """

    model: str
    bucket: int
    decode_sms: int
    sampling: str
    first_sm: int = 0


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
        self._capture = capture
        self.budget_bytes = budget_bytes
        self._graphs: dict[GraphKey, tuple[Step, int]] = {}
        self._failed: set[GraphKey] = set()
        self._shared_bytes = 0
        self._has_warned = False

    @property
    def used_bytes(self) -> int:
        return self._shared_bytes + sum(own_bytes for _, own_bytes in self._graphs.values())

    @property
    def num_failed(self) -> int:
        """Shapes that could not be captured."""
        return len(self._failed)

    def __len__(self) -> int:
        return len(self._graphs)

    def captures(self, key: GraphKey) -> bool:
        """Returns whether `replay` would capture. The caller's inputs must be padding then: a capture runs the step."""
        if key in self._graphs or key in self._failed or self._capture is None:
            return False
        if self.used_bytes < self.budget_bytes:
            return True
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "%d decode graphs fill their budget of %d bytes; further shapes run launch by launch",
                len(self._graphs),
                self.budget_bytes,
            )
        return False

    def replay(self, key: GraphKey, step: Step, stream: Any) -> Step:
        """A captured `step`, or `step` itself where the budget is spent or it cannot be captured."""
        if self.captures(key):
            assert self._capture is not None
            try:
                self._graphs[key] = self._capture(step, stream)
            except RuntimeError:  # launched one by one it may work; if the device is lost, that says so
                _LOG.exception("a decode step cannot be captured and runs launch by launch: %s", key)
                self._failed.add(key)
            self._shared_bytes = self._capture.shared_bytes() if self._graphs else 0
        return self._graphs[key][0] if key in self._graphs else step

    def forget_model(self, model: str) -> None:
        """Memory of intermediate values stays with the graphs that are left, and goes with the last one."""
        self._graphs = {key: graph for key, graph in self._graphs.items() if key.model != model}
        self._failed = {key for key in self._failed if key.model != model}
        if not self._graphs:
            self.clear()

    def clear(self) -> None:
        """A graph belongs to the context of its stream, and must go before it."""
        self._graphs.clear()
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
