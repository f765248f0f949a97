"""The executor on an NVIDIA GPU: two lanes of streams over one block pool, one thread.

A launch is enqueued by `submit`, which returns before the GPU has done it; `wait` polls the lanes' events. A decode
launch is a graph replay of well under a millisecond on the host, a prefill slice is launched layer by layer while
decode runs. An error of the device itself ends the process: the actor starts another.
"""

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from pdmux_actor.executor.cuda.cuda_device import cuda_device_spec, open_cuda_device
from pdmux_actor.executor.cuda.cuda_runner import CudaModel, CudaRunner, Read
from pdmux_actor.executor.cuda.decode_graphs import CudaGraphCapture, DecodeGraphs
from pdmux_actor.executor.cuda.device_attention import DeviceKv
from pdmux_actor.executor.cuda.partition_streams import PartitionStreams, open_partition_streams
from pdmux_actor.executor.cuda.warm_up import warm_up
from pdmux_actor.executor.loading import LoadedModel, load_decoder
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.models.triton_operators import TritonOperators
from pdmux_actor.models.weights import torch_dtype
from pdmux_actor.scheduling.launch import Completion, ComputeLaunch, DropPrefill, Lane, Launch, Repartition, lane_of
from profiler.specs import DeviceSpec

_LOG = logging.getLogger(__name__)
# Of the device's memory, for captured decode graphs (MuxWise §4.5: 6.2 %).
GRAPH_MEMORY_SHARE = 0.06

_FASTEST_DTYPE = "bfloat16"  # on every GPU that is new enough for this executor


class Event(Protocol):
    def query(self) -> bool: ...


class LaneDevice(Protocol):
    """What the executor asks of CUDA beside tensors; a test runs it on the CPU."""

    device: torch.device
    streams: PartitionStreams

    def on(self, stream: Any) -> AbstractContextManager[object]:
        """Makes `stream` current."""
        ...

    def record(self, stream: Any) -> Event:
        """Is done when what `stream` holds now is."""
        ...

    def settle(self) -> None:
        """Waits for what was enqueued outside the lanes: their streams do not wait for the default one."""
        ...

    def free_memory_bytes(self) -> int:
        """What can be had, torch's own reserves included."""
        ...


class CudaLanes:
    """Implements LaneDevice on a GPU."""

    def __init__(self, device: torch.device, streams: PartitionStreams) -> None:
        self.device = device
        self.streams = streams

    def on(self, stream: Any) -> AbstractContextManager[object]:
        return torch.cuda.stream(stream)

    def record(self, stream: Any) -> Event:
        event = torch.cuda.Event()
        event.record(stream)
        return event

    def settle(self) -> None:
        torch.cuda.default_stream(self.device).synchronize()

    def free_memory_bytes(self) -> int:
        held: dict[str, int] = torch.cuda.memory_stats(self.device)
        kept = held.get("reserved_bytes.all.current", 0) - held.get("allocated_bytes.all.current", 0)
        # Parts of blocks whose other parts are in use cannot be given back.
        free_bytes: int = torch.cuda.mem_get_info(self.device)[0]
        return free_bytes + kept - held.get("inactive_split_bytes.all.current", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _InFlight:
    launch: ComputeLaunch
    started_s: float
    read: Read
    event: Event


class TorchCudaExecutor:
    """Implements executor.base.Executor."""

    def __init__(
        self,
        *,
        kv_pool_bytes: int,
        block_bytes: int,
        default_dtype: str | None = None,
        lanes: LaneDevice,
        device: DeviceSpec,
        graphs: DecodeGraphs,
    ) -> None:
        assert block_bytes % 16 == 0, "blocks must be aligned for vector loads of every dtype"
        self.device = device
        self.block_bytes = block_bytes
        self.unpartitioned_reason = lanes.streams.unpartitioned_reason
        self.total_blocks = kv_pool_bytes // block_bytes
        self._default_dtype = default_dtype
        self._lanes = lanes
        self._pool = torch.zeros(self.total_blocks, block_bytes, dtype=torch.uint8, device=lanes.device)
        self._loaded: dict[str, LoadedModel] = {}
        self._attached: dict[str, CudaModel] = {}
        self._graphs = graphs
        self._runners = {lane: CudaRunner(self._attached, graphs, lanes.device) for lane in Lane}
        self._sms = dict.fromkeys(Lane, device.num_sms)
        self._in_flight: dict[Lane, _InFlight] = {}
        self._failed: list[Completion] = []
        self._woken = threading.Event()

    def now(self) -> float:
        return time.perf_counter()

    def load_model(
        self, model: str, source: str, *, revision: str | None, dtype: str | None, max_model_len: int | None
    ) -> ModelInfo:
        with torch.inference_mode():
            loaded = load_decoder(
                model,
                source,
                revision=revision,
                dtype=dtype or self._default_dtype,
                max_model_len=max_model_len,
                block_bytes=self.block_bytes,
                # What graphs keep for intermediate values counts as torch's reserves, but is not for others.
                available_bytes=self._lanes.free_memory_bytes() - self._graphs.used_bytes,
                fastest_dtype=lambda spec: _FASTEST_DTYPE,
                device=self._lanes.device,
                operators=TritonOperators(),
            )
            warm_up(loaded, self.block_bytes, self._lanes.device, self.device.num_sms)
        self.hold(loaded)
        return loaded.info

    def hold(self, loaded: LoadedModel) -> None:
        """A model that was made on the device, ready to be attached."""
        self._loaded[loaded.info.model] = loaded

    def attach_model(self, info: ModelInfo, row_table: npt.NDArray[np.int64]) -> None:
        loaded = self._loaded.pop(info.model)
        device = self._lanes.device
        self._attached[info.model] = CudaModel(
            info=info,
            decoder=loaded.decoder,
            kv=DeviceKv(
                pool=self._pool.view(torch_dtype(info.spec.dtype)),
                table=torch.zeros(row_table.shape, dtype=torch.int32, device=device),
                kv_heads=info.spec.num_kv_heads,
                head_dim=info.spec.head_dim,
                tokens_per_row=info.geometry.tokens_per_row,
                on_device=np.zeros(len(row_table), dtype=np.bool_),
            ),
            row_table=row_table,
            eos_token_ids=torch.tensor(sorted(info.eos_token_ids), dtype=torch.int64, device=device),
            max_rows=-(-info.max_model_len // info.geometry.tokens_per_row) + 1,
        )
        self._lanes.settle()

    def detach_model(self, model: str) -> None:
        self._loaded.pop(model, None)
        self._attached.pop(model, None)
        self._graphs.forget_model(model)
        for runner in self._runners.values():
            runner.forget_model(model)

    def submit(self, launch: Launch) -> None:
        match launch:
            case Repartition():
                self._repartition(launch)
            case DropPrefill(batch_id=batch_id):
                self._runners[Lane.PREFILL].drop_prefill(batch_id)
            case _:
                self._enqueue(lane_of(launch), launch)

    def wait(self, deadline_s: float | None) -> Sequence[Completion]:
        while True:
            done = self._failed + [self._complete(lane) for lane in Lane if self._is_done(lane)]
            self._failed = []
            if done or self._woken.is_set():
                self._woken.clear()
                return tuple(done)
            if deadline_s is not None and self.now() >= deadline_s:
                return ()
            self._pause(deadline_s)

    @property
    def torch_device(self) -> torch.device:
        return self._lanes.device

    @property
    def partitioning(self) -> str:
        """How SMs are shared, for people."""
        return self._lanes.streams.kind

    @property
    def graph_bytes(self) -> int:
        """Device memory that captured decode steps hold."""
        return self._graphs.used_bytes

    @property
    def graph_counts(self) -> tuple[int, int]:
        """Decode steps that were captured, and that could not be."""
        return len(self._graphs), self._graphs.num_failed

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        while self._in_flight:
            self.wait(None)
        self._graphs.clear()
        self._lanes.streams.close()

    def _enqueue(self, lane: Lane, launch: ComputeLaunch) -> None:
        assert lane not in self._in_flight, f"the {lane.value} lane has a launch in flight"
        sms = self._sms[lane]
        assert sms > 0, f"the {lane.value} lane has no SMs in the partition in force"
        stream = self._lanes.streams.stream(lane, sms)
        started_s = self.now()
        try:
            with torch.inference_mode(), self._lanes.on(stream):
                enqueue = self._runners[lane].prepare(launch, sms, stream)
                started_s = self.now()
                read, event = enqueue(), self._lanes.record(stream)
        except torch.AcceleratorError:
            raise  # the device is lost, and with it this process
        except Exception as error:
            # Out of memory, or a batch that cannot be: the lane serves other models and sequences.
            _LOG.exception("a launch of model %s failed", launch.model)
            stream.synchronize()  # what it had enqueued still reads the lane's staged inputs
            self._failed.append(
                Completion(
                    launch=launch,
                    started_s=started_s,
                    finished_s=self.now(),
                    error=f"{type(error).__name__}: {error}",
                )
            )
            return
        self._in_flight[lane] = _InFlight(launch=launch, started_s=started_s, read=read, event=event)

    def _is_done(self, lane: Lane) -> bool:
        return lane in self._in_flight and self._in_flight[lane].event.query()

    def _complete(self, lane: Lane) -> Completion:
        done = self._in_flight.pop(lane)
        produced = done.read()
        return Completion(
            launch=done.launch,
            started_s=done.started_s,
            finished_s=self.now(),
            tokens=produced.tokens,
            sequence_errors=produced.errors,
        )

    def _pause(self, deadline_s: float | None) -> None:
        if self._in_flight:
            time.sleep(0)  # lets other threads in; a longer sleep would cost a share of a decode step
            return
        self._woken.wait(None if deadline_s is None else max(0.0, deadline_s - self.now()))

    def _repartition(self, shares: Repartition) -> None:
        total = shares.prefill_sms + shares.decode_sms
        assert total <= self.device.num_sms, f"{shares} exceeds the {self.device.num_sms} SMs of the device"
        self._sms = {Lane.PREFILL: shares.prefill_sms, Lane.DECODE: shares.decode_sms}


def open_cuda_executor(
    *, kv_pool_bytes: int, block_bytes: int, default_dtype: str | None = None, device_index: int = 0
) -> TorchCudaExecutor:
    """Raises:
    DeviceUnavailable: no GPU, or one that is too old.
    """
    device = open_cuda_device(device_index)
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    lanes = CudaLanes(device, open_partition_streams(device, num_sms))
    spec = cuda_device_spec(device, step_sms=lanes.streams.step_sms)
    _LOG.info("%s: %d SMs, partitioned by %s", spec.name, spec.num_sms, lanes.streams.kind)
    return TorchCudaExecutor(
        kv_pool_bytes=kv_pool_bytes,
        block_bytes=block_bytes,
        default_dtype=default_dtype,
        lanes=lanes,
        device=spec,
        graphs=DecodeGraphs(CudaGraphCapture(torch.cuda), int(GRAPH_MEMORY_SHARE * spec.memory_bytes)),
    )
