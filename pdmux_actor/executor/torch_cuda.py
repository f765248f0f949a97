"""The executor on an NVIDIA GPU: lanes of streams over one block pool, one thread.

A launch is enqueued by `submit`, which returns before the GPU has done it; `wait` polls the lanes' events. A decode
launch is a graph replay of well under a millisecond on the host, a prefill slice is launched layer by layer while
decode runs. An error of the device itself ends the process: the actor starts another.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pdmux_actor.errors import BaseNotHere
from pdmux_actor.executor.cuda.capture_plan import likely_captures
from pdmux_actor.executor.cuda.cuda_device import check_pool
from pdmux_actor.executor.cuda.cuda_model import CudaModel
from pdmux_actor.executor.cuda.cuda_runner import CudaRunner, MakeCudaRunner, lone_cuda_runner
from pdmux_actor.executor.cuda.device_loss import DeviceLoss
from pdmux_actor.executor.cuda.enqueued_launches import EnqueuedLaunch, EnqueuedLaunches
from pdmux_actor.executor.cuda.graph_key import LAYERS, OF_TOKENS
from pdmux_actor.executor.cuda.lane_arenas import LaneArenas, arena_facts
from pdmux_actor.executor.cuda.lane_device import LaneDevice
from pdmux_actor.executor.cuda.large_kernels import LargeKernels, partition_rate
from pdmux_actor.executor.cuda.launch_buckets import EAGER_LAYER_S, host_bound_tokens
from pdmux_actor.executor.cuda.launch_graphs import LaunchGraphs
from pdmux_actor.executor.cuda.model_loading import ModelLoading
from pdmux_actor.executor.cuda.model_memory import ModelMemory
from pdmux_actor.executor.cuda.prefix_pages import FittingFlash, PagedFlash
from pdmux_actor.executor.cuda.warm_up import WarmedSizes, WarmUp, prompt_sizes
from pdmux_actor.executor.loading import LoadedModel
from pdmux_actor.model_info import ModelInfo, ModelSource
from pdmux_actor.models.load_progress import OnProgress, ignore_progress
from pdmux_actor.models.rank_share import WHOLE, RankShare
from pdmux_actor.models.workspace import Workspace
from pdmux_actor.scheduling.launch import (
    FIRST_DECODE_LANE,
    PREFILL_LANE,
    ComputeLaunch,
    DecodePart,
    DecodeStep,
    DropPrefill,
    Lane,
    Launch,
    LaunchCompletion,
    MixedStep,
    Repartition,
    lane_number,
)
from placement.estimation.memory import gathered_bytes
from placement.launch_limits import DEFAULT_LIMITS, LaunchLimits
from profiler.partition_rates import PartitionRate
from profiler.specs import DeviceSpec

_LOG = logging.getLogger(__name__)


class TorchCudaExecutor:
    """Implements executor.base.HostingExecutor."""

    memory_is_host = False

    def __init__(
        self,
        *,
        kv_pool_bytes: int,
        block_bytes: int,
        default_dtype: str | None = None,
        lanes: LaneDevice,
        device: DeviceSpec,
        graphs: LaunchGraphs,
        captures_ahead: bool = True,
        fuses: bool = False,
        eager_layer_s: float = EAGER_LAYER_S,
        paged_flash: PagedFlash | None = None,
        launch_limits: LaunchLimits = DEFAULT_LIMITS,
        chosen: Mapping[str, str] | None = None,
        share: RankShare = WHOLE,
        make_runner: MakeCudaRunner = lone_cuda_runner,
    ) -> None:
        """`captures_ahead`: once a model is attached, decode steps of `launch_limits` and layers of short prompts are
        captured whenever no launch is in flight; it `is_warming` until they are, or until anything is to be computed.
        `fuses`: so are fused steps, which the policy will ask for. `eager_layer_s`: what the host takes to launch a
        layer of a prompt kernel by kernel; layers that compute for longer are not captured. A model needs room for
        launches of `launch_limits` beside its weights. `paged_flash` is used where it takes blocks. `chosen`: what was,
        for people. `share` is what it loads of each model; `make_runner` gives each lane what enqueues its launches.

        Raises DeviceUnavailable: the KV pool does not fit.
        """
        assert block_bytes % 16 == 0, "blocks must be aligned for vector loads of every dtype"
        check_pool(kv_pool_bytes, lanes.free_memory_bytes())
        self.device = device
        self.chosen = {"partitioned_by": lanes.streams.kind, **(chosen or {})}
        self.block_bytes = block_bytes
        self.unpartitioned_reason = lanes.streams.unpartitioned_reason
        self.total_blocks = kv_pool_bytes // block_bytes
        self._default_dtype = default_dtype
        self._launch_limits = launch_limits
        self._share, self._make_runner = share, make_runner
        self._lanes = lanes
        self._pool = self._new_pool()
        self._loaded: dict[str, LoadedModel] = {}
        self._attached: dict[str, CudaModel] = {}
        self._graphs = graphs
        self._captures_ahead = captures_ahead
        self._fuses = fuses
        self._warming = set[str]()
        self._eager_layer_s = eager_layer_s
        self._flash = FittingFlash(paged_flash)
        self.workspace = Workspace()
        self._arenas = LaneArenas(launch_limits, share.num_ranks, self._spare_bytes)
        self._runners = {number: self._new_runner(number) for number in (PREFILL_LANE, FIRST_DECODE_LANE)}
        self._sms = dict.fromkeys(Lane, device.num_sms)
        self._in_flight = EnqueuedLaunches(self.now)
        self._woken = threading.Event()
        self._loss = DeviceLoss(lanes, self.wake)
        self._memory = ModelMemory(lanes, self._free_bytes, self.wake)
        self._loading = self._new_loading()

    def now(self) -> float:
        return time.perf_counter()

    def resize_pool(self, total_blocks: int) -> int:
        self._pool = self._pool[:0].clone()  # before the new one is made: there is room for one
        self._lanes.give_back()  # of what a smaller pool left of the larger one's stretch models would have nothing
        self.total_blocks = min(total_blocks, self._free_bytes() // self.block_bytes)
        self._pool = self._new_pool()
        return self.total_blocks

    def _new_pool(self) -> torch.Tensor:
        return torch.zeros(self.total_blocks, self.block_bytes, dtype=torch.uint8, device=self._lanes.device)

    def _new_loading(self) -> ModelLoading:
        limits, lanes = self._launch_limits, self._lanes
        prompts = prompt_sizes(limits.batch_tokens if self._captures_ahead else 0)
        warm_up = WarmUp(
            block_bytes=self.block_bytes,
            device=lanes.device,
            num_sms=self.device.num_sms,
            sizes=WarmedSizes(prompts=prompts, sequences=limits.sequences),
            workspace=self.workspace,
            flash=self._flash,
        )
        share, free_bytes, memory, loss = self._share, self._free_bytes, self._memory, self._loss
        return ModelLoading(lanes, warm_up, limits=limits, share=share, free_bytes=free_bytes, memory=memory, loss=loss)

    def load_model(self, source: ModelSource, *, on_progress: OnProgress = ignore_progress) -> ModelInfo:
        return self.hold(self._loading.model(source.or_dtype(self._default_dtype), on_progress))

    def load_adapter(self, model: str, base: str, source: str, *, revision: str | None) -> None:
        held = self._loaded.get(base) or self._attached.get(base)
        if held is None:
            raise BaseNotHere(model=model, base=base)
        self._loading.adapter(model, held, source, revision)

    def hold(self, loaded: LoadedModel) -> ModelInfo:
        """A model that was made on the device, ready to be attached."""
        self._loaded[loaded.info.model] = loaded
        return loaded.info

    def _held(self, model: str) -> LoadedModel | CudaModel:
        return self._loaded.get(model) or self._attached[model]

    def attach_model(self, info: ModelInfo, row_table: npt.NDArray[np.int64]) -> None:
        captured_tokens = host_bound_tokens(info.spec, self.device, self._eager_layer_s)
        with self._memory.of(info.model, "its rows' blocks", row_table.size * torch.int32.itemsize):
            self._make_attached(info, row_table, captured_tokens)
        self._lanes.settle()
        self._serve_models()
        self._graphs.memory_came_free()  # loading takes more than a loaded model
        if self._captures_ahead:
            streams, sizes = self._lanes.streams, (self._launch_limits.sequences, captured_tokens)
            fuses = self._fuses and self._attached[info.model].has_pieces
            self._graphs.plan(likely_captures(info.model, streams, self.device, *sizes, fuses=fuses))
            self._warming.add(info.model)

    def _make_attached(self, info: ModelInfo, row_table: npt.NDArray[np.int64], captured_tokens: float) -> None:
        """Makes a loaded model an attached one; where that fails it is neither."""
        limits, num_ranks = self._launch_limits, self._share.num_ranks
        try:
            self._attached[info.model] = CudaModel.of(
                self._loaded[info.model],
                row_table,
                self._pool,
                workspace=self.workspace,
                most_sequences=limits.sequences,
                gathered_bytes=gathered_bytes(info.whole or info.spec, num_ranks, limits, info.max_model_len),
                flash=self._flash,
                captured_tokens_per_sm=captured_tokens / self.device.num_sms,
            )
        finally:
            del self._loaded[info.model]  # last: another thread may look for it here and then there

    def is_warming(self, model: str) -> bool:
        return model in self._warming and self.captures_left(model) > 0

    def captures_left(self, model: str) -> int:
        return self._graphs.num_planned_of(model)

    def finish_captures(self) -> None:
        while self._graphs.destroy_one() or (self._warming and self._capture_planned()):
            pass
        self._warming.clear()

    def _capture_planned(self) -> bool:
        """One of the captures that wait, or a layer of it. Returns whether there was one."""
        assert not self._in_flight, "a capture waits for its lane"
        planned = self._graphs.next_planned()
        if planned is None:
            return False
        number = PREFILL_LANE if planned.key.part == LAYERS else FIRST_DECODE_LANE
        products = Lane.PREFILL if planned.key.part in OF_TOKENS else Lane.DECODE
        with torch.inference_mode(), self._lanes.on(planned.stream, planned.key.sms, products):
            self._runners[number].capture(planned.key, planned.stream)
        return True

    def detach_model(self, model: str) -> None:
        self._loading.drop_adapter(model)
        self._warming.discard(model)
        self._loaded.pop(model, None)
        self._attached.pop(model, None)
        self._graphs.forget_model(model)
        for runner in self._runners.values():
            runner.forget_model(model)
        self._serve_models()
        self._graphs.memory_came_free()

    def _serve_models(self) -> None:
        """Beside other models, arenas are resized before each lane's next launch, on its stream."""
        self._arenas.serve(attached.info for attached in self._attached.values())
        if len(self._attached) <= 1:
            for number, runner in self._runners.items():
                if number not in self._in_flight:
                    self._arenas.resize(number, runner.arena)
            self._lanes.settle()  # what the default stream still did with the memory

    def sleep_model(self, model: str, most_bytes: int) -> int:
        return self._loading.put_to_sleep(self._held(model), most_bytes)

    def wake_model(self, model: str) -> ModelInfo:
        return self.hold(self._loading.wake(model))

    def forget_sleeper(self, model: str) -> None:
        self._loading.forget_sleeper(model)
        self.wake()

    def _free_bytes(self) -> int:
        """For weights, and for the workspace that a plan gives to each model: what lanes have of it is there."""
        runners = self._runners.copy()  # a thread that loads a model asks, too
        return max(0, self._spare_bytes() + self._arenas.reserved_bytes({n: r.arena for n, r in runners.items()}))

    def _spare_bytes(self) -> int:
        return self._lanes.free_memory_bytes() - self._graphs.unused_budget_bytes - self._graphs.idle_bytes

    def submit(self, launch: Launch) -> None:
        match launch:
            case Repartition():
                self._repartition(launch)
            case DropPrefill(batch_id=batch_id):
                self._runners[PREFILL_LANE].drop_prefill(batch_id)
            case _:
                self._enqueue(launch)

    def wait(self, deadline_s: float | None) -> Sequence[LaunchCompletion]:
        while True:
            done = self._in_flight.take_over()
            self._loss.check()
            if done or self._woken.is_set():
                self._woken.clear()
                return tuple(done)
            if self._memory.take_news():
                self._graphs.memory_came_free()
            destroyed = self._graphs.destroy_one()
            if deadline_s is not None and self.now() >= deadline_s:
                return ()
            if destroyed:
                continue
            if self._in_flight or not self._capture_planned():
                if self._warming:
                    self._warming.clear()  # whoever waits for them is told
                    return ()
                if self._in_flight or not self._loading.unlock_one():
                    self._pause(deadline_s)

    @property
    def torch_device(self) -> torch.device:
        return self._lanes.device

    @property
    def arena_facts(self) -> Mapping[str, int]:
        return arena_facts(runner.arena for runner in self._runners.values())

    @property
    def graph_facts(self) -> Mapping[str, float]:
        """Returns `LaunchGraphs.facts` and the share of the memory that they hold."""
        held = self._graphs.facts()
        return {**held, "graph_memory_share": held["graph_bytes"] / self.device.memory_bytes}

    def partition_rates(self, shares: Sequence[int]) -> tuple[PartitionRate, ...]:
        """Measures the rates of lanes with so many SMs: products on the prefill lane, copies on the decode lane.
        Nothing else may run.
        """
        kernels = LargeKernels(self._lanes.device)
        self._lanes.settle()
        return tuple(partition_rate(self._lanes, kernels, sms) for sms in shares)

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        while self._in_flight:
            self.wait(None)
        # Whoever frees pinned memory records an event on the streams that read it: it must go while they are there.
        self._runners.clear()
        self._graphs.clear()
        self._lanes.streams.close()

    def run(self, job: Callable[[], None], lane: Lane, first_sm: int, sms: int) -> None:
        """Enqueues, on this thread, what a rank is told to: on a lane's stream with `sms` SMs, of a divided decode on
        those from `first_sm` on; -1: it is not divided. `job` must not raise.
        """
        streams = self._lanes.streams
        stream = streams.stream(lane, sms) if first_sm < 0 else streams.part_stream(first_sm, sms)
        with torch.inference_mode(), self._lanes.on(stream, sms, lane):
            job()

    def run_in_place(self, job: Callable[[], None], lane: Lane) -> None:
        """Does it now: only enqueued work is behind others."""
        job()

    def runner(self, number: int) -> CudaRunner:
        """Returns the runner of a lane, by its number."""
        if number not in self._runners:  # what a launch computes in is its lane's until it has ended
            self._runners[number] = self._new_runner(number)
        return self._runners[number]

    def _new_runner(self, number: int) -> CudaRunner:
        return self._make_runner(number, self._attached, self._graphs, self._lanes.device)

    def _enqueue(self, launch: ComputeLaunch) -> None:
        self._warming.clear()  # who asks now cannot wait for captures
        number, lane = lane_number(launch), launch.lane
        part, ahead = (launch.part, launch.ahead > 0) if isinstance(launch, DecodeStep) else (None, False)
        assert self._in_flight.has_room(number, ahead=ahead), f"the {lane.value} lane has a launch in flight, or none"
        sms, stream = self._place(lane, part)
        first_sm = 0 if part is None else part.first_sm
        started_s = self.now()
        try:
            # A fused step multiplies as many rows as a prompt, whatever its lane.
            products = Lane.PREFILL if isinstance(launch, MixedStep) else lane
            with torch.inference_mode(), self._lanes.on(stream, sms, products):
                if not ahead:
                    self._arenas.resize(number, self.runner(number).arena)
                enqueue = self.runner(number).prepare(launch, sms, stream, first_sm=first_sm)
                started_s = self.now()
                read, event = enqueue(), self._lanes.record(stream)
        except Exception as error:
            # Out of memory, or a batch that cannot be: the lane serves other models and sequences.
            _LOG.exception("a launch of model %s failed", launch.model)
            # What it had enqueued still reads the lane's staged inputs. Where the device is lost, this raises, and the
            # process ends.
            stream.synchronize()
            reason = f"{type(error).__name__}: {error}"
            self._in_flight.add(number, EnqueuedLaunch(launch=launch, started_s=started_s, error=reason))
            return
        self._in_flight.add(number, EnqueuedLaunch(launch=launch, started_s=started_s, read=read, event=event))

    def _place(self, lane: Lane, part: DecodePart | None) -> tuple[int, Any]:
        """SMs, those that the driver gave for the share, and stream of a launch."""
        sms = self._sms[lane]
        assert sms > 0, f"the {lane.value} lane has no SMs in the partition in force"
        if part is None:
            return self._lanes.streams.sms_given(lane, sms), self._lanes.streams.stream(lane, sms)
        assert part.end_sm <= sms, f"{part} exceeds the {sms} SMs of decode"
        return part.sms, self._lanes.streams.part_stream(part.first_sm, part.sms)

    def _pause(self, deadline_s: float | None) -> None:
        if self._in_flight:
            time.sleep(0)  # lets other threads in; a longer sleep would cost a share of a decode step
        else:
            self._woken.wait(None if deadline_s is None else max(0.0, deadline_s - self.now()))

    def _repartition(self, shares: Repartition) -> None:
        total = shares.prefill_sms + shares.decode_sms
        assert total <= self.device.num_sms, f"{shares} exceeds the {self.device.num_sms} SMs of the device"
        self._sms = {Lane.PREFILL: shares.prefill_sms, Lane.DECODE: shares.decode_sms}
