"""Opens a GPU: its partitions, its kernels, and the executor over them."""

import logging
from collections.abc import Collection
from dataclasses import replace

import torch

from pdmux_actor.executor.cuda.cuda_device import cuda_device_spec, open_cuda_device, settled_free_bytes
from pdmux_actor.executor.cuda.cuda_runner import MakeCudaRunner, lone_cuda_runner
from pdmux_actor.executor.cuda.flash_attention import BUILT_IN, activate_flash_attention
from pdmux_actor.executor.cuda.graph_capture import CudaGraphCapture
from pdmux_actor.executor.cuda.lane_device import CudaLanes
from pdmux_actor.executor.cuda.large_kernels import lanes_that_gain
from pdmux_actor.executor.cuda.launch_graphs import LaunchGraphs
from pdmux_actor.executor.cuda.partition_streams import open_partition_streams
from pdmux_actor.executor.cuda.prefix_pages import paged_flash
from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.models.rank_share import WHOLE, RankShare
from pdmux_actor.scheduling.launch import Lane
from placement.estimation.memory import LIBRARY_BYTES, graph_bytes
from placement.launch_limits import DEFAULT_LIMITS, LaunchLimits

_LOG = logging.getLogger(__name__)


def open_cuda_executor(
    *,
    kv_pool_bytes: int,
    block_bytes: int,
    default_dtype: str | None = None,
    captures: bool = True,
    divides_decode: bool = False,
    fuses: bool = False,
    launch_limits: LaunchLimits = DEFAULT_LIMITS,
    share: RankShare = WHOLE,
    make_runner: MakeCudaRunner = lone_cuda_runner,
) -> TorchCudaExecutor:
    """Its device's `memory_bytes` are what KV and models may fill. Without `captures` decode runs launch by launch.
    `divides_decode`: several models decode at once, each on a part of the decode share. `fuses`: the policy asks for
    fused steps.

    Raises DeviceUnavailable: no GPU, one that cannot be used, or too little memory for the KV pool.
    """
    device = open_cuda_device()
    from torch.nn.attention import varlen  # with torch's compiler 145 MiB and more than a second, only for a GPU

    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    flash = activate_flash_attention(torch.nn.attention, torch.cuda.get_device_capability(device))
    streams = open_partition_streams(device, num_sms, divides_decode=divides_decode)
    is_partitioned = streams.unpartitioned_reason is None
    told_lanes = lanes_that_gain(device, streams, num_sms) if is_partitioned else frozenset[Lane]()
    lanes = CudaLanes(device, streams, num_sms=num_sms, told_lanes=told_lanes, tells_attention=flash != BUILT_IN)
    spec = cuda_device_spec(device, step_sms=streams.step_sms)
    _LOG.info("%s: %d SMs, partitioned by %s; prefill by %s", spec.name, spec.num_sms, streams.kind, flash)
    products = _products(told_lanes)
    _LOG.info("matrix products run %s", products)
    for_graphs = graph_bytes(spec.memory_bytes)
    fillable_bytes = min(spec.memory_bytes, settled_free_bytes(lanes.free_memory_bytes)) - for_graphs - LIBRARY_BYTES
    return TorchCudaExecutor(
        kv_pool_bytes=kv_pool_bytes,
        block_bytes=block_bytes,
        default_dtype=default_dtype,
        lanes=lanes,
        device=replace(spec, memory_bytes=max(0, fillable_bytes)),
        graphs=LaunchGraphs(CudaGraphCapture(torch.cuda, lanes.captures) if captures else None, for_graphs),
        captures_ahead=captures,
        fuses=fuses,
        paged_flash=paged_flash(varlen),
        launch_limits=launch_limits,
        chosen={"prefill_attention": flash, "products": products},
        share=share,
        make_runner=make_runner,
    )


def _products(told_lanes: Collection[Lane]) -> str:
    told = " and ".join(lane.value for lane in Lane if lane in told_lanes)
    return f"of {told} told the SMs of their partition" if told else "as for the whole GPU, also on a partition"
