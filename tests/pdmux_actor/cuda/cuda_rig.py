"""The CUDA executor on the CPU: Triton's interpreter computes, a stream is nothing, a captured step is run again."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from cpu_rig import NAN_BYTE, CpuRig

from pdmux_actor.executor.cuda.graph_key import Step
from pdmux_actor.executor.cuda.lane_device import Event
from pdmux_actor.executor.cuda.launch_buckets import EAGER_LAYER_S
from pdmux_actor.executor.cuda.launch_graphs import LaunchGraphs
from pdmux_actor.executor.cuda.prefix_pages import PagedFlash
from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.models.uploads import copy_in_place
from pdmux_actor.scheduling.launch import Lane
from placement.launch_limits import DEFAULT_LIMITS, LaunchLimits
from profiler.gpus.h200 import DEVICE as H200

KV_POOL_BYTES = 4 << 20
NUM_SMS = 4  # the splits of a context follow from it, and the interpreter runs each
BLOCK_BYTES = 512  # 4 tokens of the tiny checkpoints


class NoStream:
    def __init__(self, lane: Lane, sms: int) -> None:
        self.lane, self.sms = lane, sms

    def synchronize(self) -> None:
        pass


class NoStreams:
    kind = "none"
    step_sms = 16
    unpartitioned_reason = None

    def stream(self, lane: Lane, sms: int) -> NoStream:
        return NoStream(lane, sms)

    def part_stream(self, first_sm: int, sms: int) -> NoStream:
        return NoStream(Lane.DECODE, sms)

    def sms_given(self, lane: Lane, sms: int) -> int:
        return sms

    def close(self) -> None:
        pass


class Done:
    def query(self) -> bool:
        return True


class CpuLanes:
    """Implements LaneDevice; `used` remembers the streams of launches."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.streams = NoStreams()
        self.used: list[NoStream] = []
        self.pinned: list[tuple[int, int]] = []  # address and bytes
        self.most_pinned_bytes = 0  # at once
        self.products: list[Lane] = []  # whose choices launches were given
        self.num_copies = 0
        self.num_given_back = 0

    def on(self, stream: NoStream, sms: int, lane: Lane) -> AbstractContextManager[object]:
        self.used.append(stream)
        self.products.append(lane)
        return nullcontext()

    def record(self, stream: NoStream) -> Event:
        return Done()

    def settle(self) -> None:
        pass

    def free_memory_bytes(self) -> int:
        return 1 << 34

    def give_back(self) -> None:
        self.num_given_back += 1

    def make_room(self, num_bytes: int) -> None:
        pass

    def copying(self) -> AbstractContextManager[object]:
        self.num_copies += 1
        return nullcontext()

    def upload(self, target: torch.Tensor, source: torch.Tensor) -> None:
        copy_in_place(target, source)

    def pin(self, memory: torch.Tensor) -> None:
        self.pinned.append((memory.data_ptr(), memory.nbytes))
        self.most_pinned_bytes = max(self.most_pinned_bytes, memory.nbytes)

    def unpin(self, memory: torch.Tensor) -> None:
        self.pinned.remove((memory.data_ptr(), memory.nbytes))


class RerunCapture:
    """As capturing does, it runs the step once; `graph_bytes` is what each takes, `fails` what a capture raises."""

    def __init__(self, graph_bytes: int, fails: Exception | None = None) -> None:
        self.graph_bytes = graph_bytes
        self.fails = fails
        self.count = 0

    def __call__(self, step: Step, stream: NoStream) -> tuple[Step, int]:
        self.count += 1
        step()
        if self.fails is not None:
            raise self.fails
        return step, self.graph_bytes

    def shared_bytes(self) -> int:
        return 0

    def idle_bytes(self) -> int:
        return 0

    def renew(self) -> None:
        pass


def make_cuda_rig(
    *,
    budget_bytes: int = 1 << 30,
    graph_bytes: int = 1 << 20,
    capture_fails: Exception | None = None,
    captures_ahead: bool = False,
    fuses: bool = False,
    launch_limits: LaunchLimits = DEFAULT_LIMITS,
    paged_flash: PagedFlash | None = None,
    captures_prompts: bool = False,
) -> CpuRig:
    """Without `captures_prompts` the host launches layers in no time, so that no prompt is worth a graph."""
    executor = TorchCudaExecutor(
        kv_pool_bytes=KV_POOL_BYTES,
        block_bytes=BLOCK_BYTES,
        lanes=CpuLanes(),
        device=replace(H200, num_sms=NUM_SMS),
        graphs=LaunchGraphs(RerunCapture(graph_bytes, capture_fails), budget_bytes),
        captures_ahead=captures_ahead,
        fuses=fuses,
        eager_layer_s=EAGER_LAYER_S if captures_prompts else 0.0,
        paged_flash=paged_flash,
        launch_limits=launch_limits,
    )
    executor._pool.fill_(NAN_BYTE)
    return CpuRig(executor=executor)


def rest(rig: CpuRig) -> None:
    """Until nothing is left that waits for a moment without launches."""
    while rig.executor._graphs.destroy_one() or rig.executor._capture_planned():
        pass
