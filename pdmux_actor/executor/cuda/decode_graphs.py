"""Captured decode steps: one CUDA graph per batch bucket and partition, made when first needed, within a budget.

A captured graph keeps the SMs of the stream it was captured on, hence one for each partition (research: MuxWise §4.5
measured 6.2 % of memory for 6 partitions x 20 sizes).
"""

import logging
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

_LOG = logging.getLogger(__name__)

BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)

Step = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphKey:
    """`sampling` names what the step does after the logits; see device_sampler.SamplingKind."""

    model: str
    bucket: int
    decode_sms: int
    sampling: str


class Capture(Protocol):
    def __call__(self, step: Step, stream: Any) -> tuple[Step, int]:
        """What replays `step` as captured on `stream`, and the bytes of device memory that it took.

        `step` is run before capture, and must be harmless then.
        """
        ...


class DecodeGraphs:
    """`capture` None runs every step launch by launch."""

    def __init__(self, capture: Capture | None, budget_bytes: int) -> None:
        self._capture = capture
        self._budget_bytes = budget_bytes
        self._used_bytes = 0
        self._graphs: dict[GraphKey, Step] = {}
        self._is_full = False

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def __len__(self) -> int:
        return len(self._graphs)

    def replay(self, key: GraphKey, step: Step, stream: Any) -> Step:
        """A captured `step`, or `step` itself where the budget is spent. The caller's inputs must be padding only while
        this runs: a capture runs the step.
        """
        if key in self._graphs:
            return self._graphs[key]
        if self._capture is None or self._is_full:
            return step
        if self._used_bytes >= self._budget_bytes:
            self._is_full = True
            _LOG.warning(
                "%d decode graphs fill their budget of %d bytes; further shapes run launch by launch",
                len(self._graphs),
                self._budget_bytes,
            )
            return step
        self._graphs[key], taken_bytes = self._capture(step, stream)
        self._used_bytes += taken_bytes
        return self._graphs[key]

    def has(self, key: GraphKey) -> bool:
        return key in self._graphs

    def forget_model(self, model: str) -> None:
        """Their memory goes back to the graphs' own pool, for other models' graphs."""
        self._graphs = {key: graph for key, graph in self._graphs.items() if key.model != model}


def bucket_of(num_sequences: int) -> int:
    """The least bucket that holds the batch; batches beyond the largest are padded to a multiple of it.

    >>> bucket_of(1), bucket_of(17), bucket_of(256), bucket_of(300)
    (1, 24, 256, 512)
    """
    if num_sequences > BUCKETS[-1]:
        return -(-num_sequences // BUCKETS[-1]) * BUCKETS[-1]
    return BUCKETS[bisect_left(BUCKETS, num_sequences)]


def cuda_graph_capture() -> Capture:
    """Captures with torch's CUDA graphs; all share one memory pool, since one lane replays them one after another."""
    import torch

    pool = torch.cuda.graph_pool_handle()

    def capture(step: Step, stream: Any) -> tuple[Step, int]:
        with torch.cuda.stream(stream):
            step()  # compiles kernels and makes cuBLAS's workspace, neither of which can be captured
        stream.synchronize()
        free_before, _ = torch.cuda.mem_get_info()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            step()
        free_after, _ = torch.cuda.mem_get_info()
        return graph.replay, max(0, free_before - free_after)

    return capture
