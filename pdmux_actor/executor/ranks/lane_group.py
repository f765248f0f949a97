"""Collectives of one lane among the ranks of a unit. Each lane has a communicator: none waits for another's."""

import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import FileStore, GatherOptions, PrefixStore, ProcessGroupGloo  # type: ignore[attr-defined]  # its stubs lack them

from profiler.specs import DeviceSpec

# A rank that stands is the engine watch's to find, one that dies ends the unit: this is for neither.
_TIMEOUT = timedelta(days=1)
_TINY_TRIES = 20
_LARGE_BYTES = 4 * 1024 * 1024
_LARGE_TRIES = 3


class LaneGroup:
    """Every rank calls the same of these in the same order; tensors are of one shape on all of them."""

    def __init__(self, group: ProcessGroupGloo, rank: int, num_ranks: int) -> None:
        self._group: Any = group  # the stubs of its class are empty
        self._rank = rank
        self._num_ranks = num_ranks

    @property
    def leads(self) -> bool:
        return self._rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Adds up all ranks' tensors, in place."""
        _end(self._group.allreduce([tensor]))
        return tensor

    def from_leader(self, tensor: Tensor) -> Tensor:
        """Fills the tensor with what the leader's holds."""
        _end(self._group.broadcast([tensor]))
        return tensor

    def to_leader(self, tensor: Tensor) -> list[Tensor]:
        """All ranks' tensors, in their order; nothing on others than the leader."""
        options = GatherOptions()
        options.rootRank = 0
        gathered = [torch.empty_like(tensor) for _ in range(self._num_ranks)] if self.leads else []
        _end(self._group.gather([gathered] if self.leads else [], [tensor], options))
        return gathered


def _end(work: Any) -> None:  # noqa: ANN401 - torch's class of it has no types
    # no deadline: a rank that dies ends its unit, and an engine whose launch stands still is killed by its actor
    work.wait()


def open_lane_groups(store_path: str, rank: int, num_ranks: int, num_lanes: int) -> tuple[LaneGroup, ...]:
    """Meets the other ranks through a file that all of them name. Listens on loopback only."""
    store = FileStore(store_path, num_ranks)

    def opened(lane: int) -> LaneGroup:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # the only way to choose a device
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = _TIMEOUT
        group = ProcessGroupGloo(PrefixStore(f"lane-{lane}", store), rank, num_ranks, options)
        return LaneGroup(group, rank, num_ranks)

    return tuple(opened(lane) for lane in range(num_lanes))


def measured_links(group: LaneGroup, device: DeviceSpec, num_ranks: int) -> DeviceSpec:
    """Adds what all-reduces take here, t = t_0 + 2 (N-1) B / (N B_link) as in `operator_costs`, and leaves each rank
    its part of the memory. All ranks call it.
    """
    start_s = _best_s(group, torch.zeros(1), _TINY_TRIES)
    large = torch.zeros(_LARGE_BYTES // 4)
    transfer_s = max(1e-9, _best_s(group, large, _LARGE_TRIES) - start_s)
    link_bytes_per_s = 2 * (num_ranks - 1) * _LARGE_BYTES / (num_ranks * transfer_s)
    return replace(
        device,
        memory_bytes=device.memory_bytes // num_ranks,
        all_reduce_start_s=start_s,
        link_bandwidth_bytes_per_s=link_bytes_per_s,
    )


def _best_s(group: LaneGroup, tensor: Tensor, tries: int) -> float:
    best_s = float("inf")
    for _ in range(tries):
        started_s = time.perf_counter()
        group.sum(tensor)
        best_s = min(best_s, time.perf_counter() - started_s)
    return best_s
