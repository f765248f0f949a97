"""A tensor-parallel unit of GPUs: the leading rank's executor with the others' processes, and a following rank's. Each
has a GPU of its own, over which NCCL sums; both lanes' launches come from one thread.
"""

import os
import tempfile
from pathlib import Path

from pdmux_actor.errors import DeviceUnavailable
from pdmux_actor.executor.cuda.cuda_device import check_cuda_devices, open_cuda_device
from pdmux_actor.executor.open_cuda import open_cuda_executor
from pdmux_actor.executor.ranks.following_cuda_runner import FollowingCudaRunner
from pdmux_actor.executor.ranks.lane_group import linked_gpu, open_lane_groups
from pdmux_actor.executor.ranks.leading_cuda_runner import LeadingCudaRunner
from pdmux_actor.executor.ranks.rank_frames import RankSettings
from pdmux_actor.executor.ranks.tensor_parallel_executor import TensorParallelExecutor
from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.models.rank_share import RankShare
from pdmux_actor.serving.rank_processes import RankProcesses
from placement.launch_limits import LaunchLimits


def gpus_of_ranks(visible: str | None, num_ranks: int) -> tuple[str, ...]:
    """Returns the CUDA_VISIBLE_DEVICES of each rank's process. `visible` is this process's, as Ray set it to what its
    actor asked for; None: the first GPUs of the machine. Raises DeviceUnavailable.

    >>> gpus_of_ranks("3,5", 2)
    ('3', '5')
    """
    gpus = [str(number) for number in range(num_ranks)] if visible is None else [g for g in visible.split(",") if g]
    if len(gpus) < num_ranks:
        raise DeviceUnavailable(
            reason=f"a unit of {num_ranks} ranks has {len(gpus)} GPUs (CUDA_VISIBLE_DEVICES={visible})",
            remedy="set mesh_gpus to how many GPUs a unit can have",
        )
    return tuple(gpus[:num_ranks])


def open_tensor_parallel_cuda_executor(
    *,
    num_ranks: int,
    num_lanes: int,
    kv_pool_bytes: int,
    block_bytes: int,
    default_dtype: str | None,
    divides_decode: bool,
    launch_limits: LaunchLimits,
) -> TensorParallelExecutor:
    """Starts the other ranks. This process has the first of its GPUs. Raises DeviceUnavailable."""
    gpus = gpus_of_ranks(os.environ.get("CUDA_VISIBLE_DEVICES"), num_ranks)
    check_cuda_devices(num_ranks)
    open_cuda_device()
    with tempfile.TemporaryDirectory(prefix="muxfleet-ranks-") as folder:
        of_ranks = [
            RankSettings(
                rank=rank,
                num_ranks=num_ranks,
                num_lanes=num_lanes,
                store=str(Path(folder) / "store"),
                kv_pool_bytes=kv_pool_bytes // num_ranks,
                block_bytes=block_bytes,
                divides_decode=divides_decode,
                launch_limits=launch_limits,
            )
            for rank in range(num_ranks)
        ]
        ranks = RankProcesses(of_ranks[1:], [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus[1:]])
        groups = open_lane_groups(of_ranks[0].store, 0, num_ranks, num_lanes, by_nccl=True)
        own = open_cuda_executor(
            kv_pool_bytes=kv_pool_bytes // num_ranks,
            block_bytes=block_bytes,
            captures=False,
            divides_decode=divides_decode,
            launch_limits=launch_limits,
            share=RankShare(rank=0, num_ranks=num_ranks),
            make_runner=lambda number, models, graphs, device: LeadingCudaRunner(
                number, models, graphs, device, group=groups[number], link=ranks
            ),
        )
        own.device = linked_gpu(groups[0], own.device, num_ranks)
    return TensorParallelExecutor(own, ranks, default_dtype=default_dtype)


def open_following_cuda_executor(settings: RankSettings, share: RankShare) -> TorchCudaExecutor:
    """Opens the one GPU that this process sees. Raises DeviceUnavailable."""
    open_cuda_device()
    groups = open_lane_groups(settings.store, settings.rank, settings.num_ranks, settings.num_lanes, by_nccl=True)
    executor = open_cuda_executor(
        kv_pool_bytes=settings.kv_pool_bytes,
        block_bytes=settings.block_bytes,
        captures=False,
        divides_decode=settings.divides_decode,
        launch_limits=settings.launch_limits,
        share=share,
        make_runner=lambda number, models, graphs, device: FollowingCudaRunner(models, graphs, device, groups[number]),
    )
    executor.device = linked_gpu(groups[0], executor.device, settings.num_ranks)
    return executor
