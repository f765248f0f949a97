"""The executor of a rank that follows, by what the leading rank was started on."""

from pdmux_actor.executor.ranks.following_rank import FollowingExecutor
from pdmux_actor.executor.ranks.following_runner import FollowingRunner
from pdmux_actor.executor.ranks.lane_group import measured_links, open_lane_groups
from pdmux_actor.executor.ranks.rank_frames import RankSettings
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.models.rank_share import RankShare
from pdmux_actor.models.torch_threads import use_torch_threads


def open_following_executor(settings: RankSettings) -> FollowingExecutor:
    """Meets the other ranks. Raises DeviceUnavailable."""
    share = RankShare(rank=settings.rank, num_ranks=settings.num_ranks)
    if settings.device is None:
        from pdmux_actor.serving.cuda_ranks import open_following_cuda_executor  # needs triton

        return open_following_cuda_executor(settings, share)
    groups = open_lane_groups(settings.store, settings.rank, settings.num_ranks, settings.num_lanes)
    measured_links(groups[0], settings.device, settings.num_ranks)
    use_torch_threads(1)  # the cores are the lanes'
    return TorchCpuExecutor(
        kv_pool_bytes=settings.kv_pool_bytes,
        block_bytes=settings.block_bytes,
        device=settings.device,
        cores=settings.cores,
        share=share,
        make_runner=lambda number, models: FollowingRunner(models, groups[number]),
    )
