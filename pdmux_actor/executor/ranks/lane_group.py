"""Collectives of one lane among the ranks of a unit. Each lane has a communicator: none waits for another's."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]  # its stubs lack them
    AllreduceOptions,
    BroadcastOptions,
    FileStore,
    GatherOptions,
    PrefixStore,
    ProcessGroupGloo,
)

from profiler.specs import DeviceSpec

# A rank that stands is the engine watch's to find, one that dies ends the unit: this is for neither.
_TIMEOUT = timedelta(days=1)
_TINY_TRIES = 20
_LARGE_BYTES = 4 * 1024 * 1024
_LARGE_TRIES = 3


class LaneGroup:
    """Every rank calls the same of these in the same order; tensors are of one shape on all of them."""

    def __init__(self, group: Any, rank: int, num_ranks: int) -> None:  # noqa: ANN401 - torch has no types of it
        self._group = group
        self._rank = rank
        self._num_ranks = num_ranks

    @property
    def leads(self) -> bool:
        return self._rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Adds up all ranks' tensors, in place."""
        _end(self._group.allreduce([tensor], _in_order(AllreduceOptions())))
        return tensor

    def from_leader(self, tensor: Tensor) -> Tensor:
        """Fills the tensor with what the leader's holds."""
        _end(self._group.broadcast([tensor], _in_order(BroadcastOptions())))
        return tensor

    def to_leader(self, tensor: Tensor) -> list[Tensor]:
        """All ranks' tensors, in their order; nothing on others than the leader."""
        options = _in_order(GatherOptions())
        options.rootRank = 0
        gathered = [torch.empty_like(tensor) for _ in range(self._num_ranks)] if self.leads else []
        _end(self._group.gather([gathered] if self.leads else [], [tensor], options))
        return gathered


def _end(work: Any) -> None:  # noqa: ANN401 - torch's class of it has no types
    """Of a GPU it only says that the stream goes on behind it; NCCL has nothing to say where it used that stream."""
    if work is not None:
        # no deadline: a rank that dies ends its unit, and an engine whose launch stands still is killed by its actor
        work.wait()


def _in_order(options: Any) -> Any:  # noqa: ANN401 - torch's classes of them have nothing in common
    """NCCL then works on the stream that is current, which has the lane's SMs, and not on one of its own."""
    options.asyncOp = False
    return options


def open_lane_groups(
    store_path: str, rank: int, num_ranks: int, num_lanes: int, *, by_nccl: bool = False
) -> tuple[LaneGroup, ...]:
    """Meets the other ranks through a file that all of them name. By gloo it listens on loopback only; `by_nccl`: each
    rank has made its GPU current.
    """
    store = FileStore(store_path, num_ranks)
    make = _nccl if by_nccl else _gloo
    return tuple(
        LaneGroup(make(PrefixStore(f"lane-{lane}", store), rank, num_ranks), rank, num_ranks)
        for lane in range(num_lanes)
    )


def _gloo(store: PrefixStore, rank: int, num_ranks: int) -> Any:  # noqa: ANN401 - the stubs of its class are empty
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # the only way to choose a device
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = _TIMEOUT
    return ProcessGroupGloo(store, rank, num_ranks, options)


def _nccl(store: PrefixStore, rank: int, num_ranks: int) -> Any:  # noqa: ANN401 - as above
    """A communicator that is there: made by a first sum, in which all ranks wait for one another."""
    from torch.distributed import ProcessGroupNCCL  # torch's builds for CPUs have none

    options = ProcessGroupNCCL.Options()
    options._timeout = _TIMEOUT
    group: Any = ProcessGroupNCCL(store, rank, num_ranks, options)
    _end(group.allreduce([torch.zeros(1, device="cuda")], _in_order(AllreduceOptions())))
    return group


def measured_links(
    group: LaneGroup,
    device: DeviceSpec,
    num_ranks: int,
    place: torch.device | None = None,
    settle: Callable[[], None] = lambda: None,
) -> DeviceSpec:
    """Adds what all-reduces take here, t = t_0 + 2 (N-1) B / (N B_link) as in `operator_costs`, and leaves each rank
    its part of the memory. All ranks call it. `place` is where what they sum lies; `settle` waits for it.
    """

    def best_s(num_values: int, tries: int) -> float:
        tensor = torch.zeros(num_values, device=place)
        best_s = float("inf")
        for _ in range(tries):
            started_s = time.perf_counter()
            group.sum(tensor)
            settle()
            best_s = min(best_s, time.perf_counter() - started_s)
        return best_s

    start_s = best_s(1, _TINY_TRIES)
    transfer_s = max(1e-9, best_s(_LARGE_BYTES // 4, _LARGE_TRIES) - start_s)
    link_bytes_per_s = 2 * (num_ranks - 1) * _LARGE_BYTES / (num_ranks * transfer_s)
    return replace(
        device,
        memory_bytes=device.memory_bytes // num_ranks,
        all_reduce_start_s=start_s,
        link_bandwidth_bytes_per_s=link_bytes_per_s,
    )


def linked_gpu(group: LaneGroup, device: DeviceSpec, num_ranks: int) -> DeviceSpec:
    """Adds what all-reduces take here, where no table says so. All ranks, whose GPUs are alike, call it."""
    if device.link_bandwidth_bytes_per_s > 0:
        return device
    measured = measured_links(group, device, num_ranks, torch.device("cuda"), settle=torch.cuda.synchronize)
    return replace(measured, memory_bytes=device.memory_bytes)  # each has its own
