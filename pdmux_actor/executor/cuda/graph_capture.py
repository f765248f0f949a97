"""Captures launches as CUDA graphs."""

from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Protocol

from pdmux_actor.executor.cuda.graph_key import Step
from pdmux_actor.models.memory_shortage import lacked_memory

_MOST_LOOKS = 20


class Capture(Protocol):
    def __call__(self, step: Step, stream: Any) -> tuple[Step, int]:
        """Captures `step` on `stream` and returns what replays it, and the bytes of device memory that this graph holds
        by itself.

        `step` is run before capture, and must be harmless then. Raises what it raises, and RuntimeError where it cannot
        be captured.
        """
        ...

    def shared_bytes(self) -> int:
        """Device memory of all graphs' intermediate values."""
        ...

    def idle_bytes(self) -> int:
        """Returns those of them that torch's allocator counts as in reserve, although only captures can have them."""
        ...

    def renew(self) -> None:
        """No graph is left."""
        ...


class CudaGraphCapture:
    """Captures with torch's CUDA graphs; all share one memory pool. In it torch's allocator gives what one graph has
    left to others of the same stream, that is of the same lane and SMs, where one graph is replayed after the other.

    torch.cuda.graph would do, but it waits for the whole device and gives the allocator's free memory back: a prefill
    in flight would be waited for, and the next one would allocate anew. That is done only where a capture finds no
    memory: while it captures, torch's allocator does not turn to what it has in reserve for others.

    torch's allocator never takes a pool again whose last graph has gone, nor one in which a capture broke off: both
    would make every later capture fail. Up to torch 2.12 it takes a capture that cannot be ended for one that goes on,
    and would give nothing back to the device any more (pytorch#180395): it is told that there is none.
    """

    def __init__(self, cuda: Any, alone: AbstractContextManager[object] | None = None) -> None:
        """`cuda` is torch.cuda, or whatever answers like it. `alone` encloses each capture: in the meantime torch's
        allocator gives nothing back to the device, whoever asks it to.
        """
        self._cuda = cuda
        self._alone = alone or nullcontext()
        self._pools: list[Any] = []  # of graphs that are there; the last one takes the next capture

    def renew(self) -> None:
        self._pools = []

    def __call__(self, step: Step, stream: Any) -> tuple[Step, int]:
        with self._cuda.stream(stream):
            step()  # compiles kernels and makes cuBLAS's workspace, neither of which can be captured
        stream.synchronize()
        try:
            return self._captured(step, stream)
        except RuntimeError as error:
            if not lacked_memory(error):
                raise
        self._cuda.empty_cache()
        return self._captured(step, stream)

    def shared_bytes(self) -> int:
        return sum(segment["total_size"] for segment in self._segments())

    def idle_bytes(self) -> int:
        # Of a segment that is in use in part the rest is none that the allocator counts as whole.
        return sum(segment["total_size"] for segment in self._segments() if not segment["active_size"])

    def _segments(self) -> list[Any]:
        return [segment for pool in self._pools for segment in self._cuda.memory.memory_snapshot(pool)]

    def _captured(self, step: Step, stream: Any) -> tuple[Step, int]:
        if not self._pools:
            self._pools.append(self._cuda.graph_pool_handle())
        before_bytes = self._driver_bytes()
        graph = self._cuda.CUDAGraph()
        with self._alone, self._cuda.stream(stream):
            # Another thread may be loading a model, which allocates: this capture is none of its business.
            graph.capture_begin(pool=self._pools[-1], capture_error_mode="thread_local")
            try:
                step()
                graph.capture_end()
            except BaseException:
                broken = self._pools[-1]
                self._pools.append(self._cuda.graph_pool_handle())
                with suppress(RuntimeError):  # ends the stream's capture; why it failed is on its way up
                    graph.capture_end()
                with suppress(RuntimeError):  # where that has told it already
                    self._cuda.memory._cuda_endAllocateToPool(self._cuda.current_device(), broken)
                raise
        return graph.replay, max(0, self._driver_bytes() - before_bytes)

    def _driver_bytes(self) -> int:
        """What the device lost to others than torch's allocator: a graph's nodes are among it."""
        reserved_bytes = self._cuda.memory_reserved()
        for _ in range(_MOST_LOOKS):
            free_bytes, total_bytes = self._cuda.mem_get_info()
            before_bytes, reserved_bytes = reserved_bytes, self._cuda.memory_reserved()
            if reserved_bytes == before_bytes:  # a thread that loads a model allocates hundreds of MB between two looks
                break
        lost_bytes: int = total_bytes - free_bytes - reserved_bytes
        return lost_bytes
