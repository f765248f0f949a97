"""The executor on CPU cores: lanes of threads, each on its cores, over one block pool."""

import logging
import queue
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np
import numpy.typing as npt

from pdmux_actor.errors import BaseNotHere
from pdmux_actor.executor.blocks_in_place import BlocksInPlace
from pdmux_actor.executor.compiled_layers import CompiledLayers
from pdmux_actor.executor.cpu_device import measure_cpu
from pdmux_actor.executor.host_copy import HostCopy, HostRegion, copy_to_host, host_bytes, packed_from_host
from pdmux_actor.executor.host_memory import (
    check_host_room,
    free_host_bytes,
    give_back_freed_memory,
    spare_host_bytes,
)
from pdmux_actor.executor.kv_storage import KvStorage, KvView
from pdmux_actor.executor.lanes import Job, LaneThread, PinnedThread, PinnedThreads, available_cores
from pdmux_actor.executor.loaded_adapters import LoadedAdapters
from pdmux_actor.executor.loading import (
    LoadedModel,
    ModelImplementation,
    awakened,
    check_room,
    load_decoder,
    refusals_of_memory,
)
from pdmux_actor.executor.model_runner import AttachedModel, MakeRunner, ModelRunner, Produced, lone_runner
from pdmux_actor.kv.prefix_kv import RowLayout
from pdmux_actor.model_info import ModelInfo, ModelSource
from pdmux_actor.models.compiled.compiled_kernels import BY_TORCH, CompiledKernels
from pdmux_actor.models.compiled.library import cached_folder
from pdmux_actor.models.decoder import Decoder, LayeredDecoder
from pdmux_actor.models.fastest_dtype import fastest_dtype
from pdmux_actor.models.load_progress import OnProgress, ignore_progress
from pdmux_actor.models.rank_share import WHOLE, RankShare
from pdmux_actor.scheduling.launch import (
    FIRST_DECODE_LANE,
    PREFILL_LANE,
    ComputeLaunch,
    DecodeStep,
    DropPrefill,
    Lane,
    Launch,
    LaunchCompletion,
    Repartition,
    lane_number,
)
from profiler.specs import DeviceSpec, ModelSpec

_LOG = logging.getLogger(__name__)


class TorchCpuExecutor:
    """Implements executor.base.HostingExecutor and KvMover.

    Decode takes the partition's lowest cores, prefill its highest. Until the first Repartition either lane may use all.
    Decode steps of several models run at once on threads of their own, each bound to its part of decode's cores.
    """

    memory_is_host = True

    def __init__(
        self,
        *,
        kv_pool_bytes: int,
        block_bytes: int,
        num_cores: int | None = None,
        default_dtype: str | None = None,
        device: DeviceSpec | None = None,
        implementation: ModelImplementation = "auto",
        cores: Sequence[int] | None = None,
        share: RankShare = WHOLE,
        make_runner: MakeRunner = lone_runner,
        compiles_kernels: bool = True,
        threads: PinnedThreads | None = None,
    ) -> None:
        """`num_cores` None: all of `cores`, which are those this process may use unless they are named.
        `default_dtype` None: each checkpoint's own; "auto": the fastest. `device` None: measured now. `implementation`:
        whose code runs the layers of models. `share` is what it loads of each model; `make_runner` gives each lane what
        runs its launches. `compiles_kernels`: where a compiler is, and they are the faster ones. `threads` are shared
        with other executors of this process and outlive this one; None: its own.
        """
        cores = available_cores() if cores is None else tuple(cores)
        if num_cores is not None and num_cores > len(cores):
            _LOG.warning("%d cores are configured, this process may use %d", num_cores, len(cores))
        self._cores = cores[:num_cores]
        self.device = device or measure_cpu(len(self._cores))
        self.block_bytes = block_bytes
        self.unpartitioned_reason: str | None = None
        self.total_blocks = kv_pool_bytes // block_bytes
        self._default_dtype = default_dtype
        self._implementation: ModelImplementation = implementation
        self._kernels = CompiledKernels.into(cached_folder()) if compiles_kernels else BY_TORCH
        self._storage = KvStorage(self.total_blocks, block_bytes)
        self._loaded: dict[str, LoadedModel] = {}
        self._attached: dict[str, AttachedModel] = {}
        self._asleep: dict[str, HostCopy] = {}
        self._adapters = LoadedAdapters(share)
        self._share = share
        self._make_runner = make_runner
        self._runners = {number: make_runner(number, self._attached) for number in (PREFILL_LANE, FIRST_DECODE_LANE)}
        self._threads, self._owns_threads = threads or PinnedThreads(), threads is None
        self._lanes = {lane: LaneThread(lane.value, self._cores, self._threads) for lane in Lane}
        self._lane_cores = dict.fromkeys(Lane, self._cores)
        self._completions: queue.SimpleQueue[LaunchCompletion | None] = queue.SimpleQueue()

    def now(self) -> float:
        return time.perf_counter()

    def resize_pool(self, total_blocks: int) -> int:
        self.total_blocks = min(total_blocks, self._free_bytes() // self.block_bytes)
        self._storage = KvStorage(self.total_blocks, self.block_bytes)
        return self.total_blocks

    def load_model(self, source: ModelSource, *, on_progress: OnProgress = ignore_progress) -> ModelInfo:
        give_back_freed_memory()  # of models that left before: it is not counted as free
        with refusals_of_memory(source.model):
            loaded = load_decoder(
                source.or_dtype(self._default_dtype),
                on_progress=on_progress,
                block_bytes=self.block_bytes,
                available_bytes=self._free_bytes(),
                fastest_dtype=self._fastest_dtype,
                implementation=self._implementation,
                kernels=self._kernels,
                share=self._share,
            )
        self._loaded[source.model] = loaded
        return loaded.info

    def load_adapter(self, model: str, base: str, source: str, *, revision: str | None) -> None:
        held = self._loaded.get(base) or self._attached.get(base)
        if held is None:
            raise BaseNotHere(model=model, base=base)
        with refusals_of_memory(model):
            self._adapters.load(model, held, source, revision)

    def attach_model(self, info: ModelInfo, row_table: npt.NDArray[np.int64]) -> None:
        decoder, kv = self._loaded[info.model].decoder, self._storage.view(info.spec, info.geometry)
        self._attached[info.model] = AttachedModel(
            info=info,
            decoder=decoder,
            kv=kv,
            row_table=row_table,
            blocks_in_place=self._blocks_in_place(info.spec, kv, row_table),
            compiled_layers=self._compiled_layers(decoder, kv, row_table),
        )
        del self._loaded[info.model]  # last: another thread may look for it here and then there

    def detach_model(self, model: str) -> None:
        self._adapters.drop(model)
        self._loaded.pop(model, None)
        self._attached.pop(model, None)
        for runner in self._runners.values():
            runner.forget_model(model)

    def sleep_model(self, model: str, most_bytes: int) -> int:
        source = self._loaded.get(model) or self._attached[model]
        needed_bytes = host_bytes(source.decoder.weights)
        give_back_freed_memory()
        check_host_room(model, needed_bytes, min(most_bytes, spare_host_bytes() // self._share.num_ranks))
        self._asleep[model] = copy_to_host(source.info, source.decoder, HostRegion(needed_bytes), nullcontext)
        return needed_bytes

    def wake_model(self, model: str) -> ModelInfo:
        host = self._asleep[model]
        spec = host.info.spec
        give_back_freed_memory()
        check_room(model, spec, spec.weight_bytes, self._free_bytes())
        with refusals_of_memory(model):
            decoder = awakened(host.config, packed_from_host(host), host.info.max_model_len, kernels=self._kernels)
        self._loaded[model] = LoadedModel(info=host.info, decoder=decoder)
        del self._asleep[model]
        return host.info

    def forget_sleeper(self, model: str) -> None:
        del self._asleep[model]

    def row_layout(self, model: str) -> RowLayout:
        attached = self._attached[model]
        geometry = attached.info.geometry
        return RowLayout(
            tokens_per_row=geometry.tokens_per_row,
            row_bytes=geometry.blocks_per_row * attached.kv.bytes_per_block,
            dtype=attached.info.spec.dtype,
        )

    def read_rows(self, model: str, rows: Sequence[int]) -> bytes:
        attached = self._attached[model]
        return attached.kv.copied_out(attached.row_table[rows].ravel())

    def write_rows(self, model: str, rows: Sequence[int], data: bytes) -> None:
        attached = self._attached[model]
        attached.kv.copy_in(attached.row_table[rows].ravel(), data)

    def run(self, job: Job, lane: Lane, first_core: int, num_cores: int) -> None:
        """Runs a job on a lane's thread behind what that does: what a rank is told to. `job` must not raise."""
        self._lanes[lane].submit(job, self._cores[first_core : first_core + num_cores])

    def run_in_place(self, job: Job, lane: Lane) -> None:
        """Runs a job behind what the lane does, on the cores of the job before. `job` must not raise."""
        self._lanes[lane].submit_in_place(job)

    def submit(self, launch: Launch) -> None:
        match launch:
            case Repartition():
                self._repartition(launch)
            case DropPrefill(batch_id=batch_id):
                drop = partial(self._runners[PREFILL_LANE].drop_prefill, batch_id)
                self.run_in_place(drop, Lane.PREFILL)
            case DecodeStep() if launch.ahead:
                raise AssertionError("its tokens are known when the step before has ended")
            case _:
                job = partial(self._execute, self._runner(launch), launch)
                self._lanes[launch.lane].submit(job, self._cores_of(launch))

    def wait(self, deadline_s: float | None) -> Sequence[LaunchCompletion]:
        timeout_s = None if deadline_s is None else max(0.0, deadline_s - self.now())
        items: list[LaunchCompletion | None] = []
        try:
            items.append(self._completions.get(timeout=timeout_s))
            while True:
                items.append(self._completions.get_nowait())
        except queue.Empty:
            return tuple(item for item in items if item is not None)

    def wake(self) -> None:
        self._completions.put(None)

    def close(self) -> None:
        if self._owns_threads:
            self._threads.close()

    def _free_bytes(self) -> int:
        """Returns what this rank may take: the others take as much at the same time."""
        return free_host_bytes() // self._share.num_ranks

    def _execute(self, runner: ModelRunner, launch: ComputeLaunch) -> None:
        started_s, produced = self.now(), Produced()
        error: str | None = None
        try:
            produced = runner.run(launch)
        except Exception as failure:
            # The lane serves other models and sequences: a failed launch fails its own sequences only.
            _LOG.exception("a launch of model %s failed", launch.model)
            error = f"{type(failure).__name__}: {failure}"
        self._completions.put(
            LaunchCompletion(
                launch=launch,
                started_s=started_s,
                finished_s=self.now(),
                tokens=produced.tokens,
                error=error,
                sequence_errors=produced.errors,
                prompt_logprobs=produced.prompt_logprobs,
                embeddings=produced.embeddings,
            )
        )

    def _runner(self, launch: ComputeLaunch) -> ModelRunner:
        """Each lane has its own: what a launch computes in is its lane's until it has ended."""
        return self.runner(lane_number(launch))

    def runner(self, number: int) -> ModelRunner:
        """Returns the runner of a lane, by its number."""
        if number not in self._runners:
            self._runners[number] = self._make_runner(number, self._attached)
        return self._runners[number]

    def _cores_of(self, launch: ComputeLaunch) -> tuple[int, ...]:
        """The cores of a launch."""
        cores = self._lane_cores[launch.lane]
        part = launch.part if isinstance(launch, DecodeStep) else None
        if part is None:
            return cores
        assert part.end_sm <= len(cores), f"{part} exceeds the {len(cores)} cores of decode"
        return cores[part.first_sm : part.end_sm]

    def _repartition(self, shares: Repartition) -> None:
        total = shares.prefill_sms + shares.decode_sms
        assert total <= len(self._cores), f"{shares} exceeds the {len(self._cores)} cores of the device"
        self._lane_cores = {
            Lane.PREFILL: self._cores[len(self._cores) - shares.prefill_sms :],
            Lane.DECODE: self._cores[: shares.decode_sms],
        }

    def _blocks_in_place(self, spec: ModelSpec, view: KvView, row_table: npt.NDArray[np.int64]) -> BlocksInPlace | None:
        kernels = self._kernels.attending(spec)
        return None if kernels is None else BlocksInPlace(kernels, view, row_table, self._kernels.panels)

    def _compiled_layers(
        self, decoder: LayeredDecoder, view: KvView, row_table: npt.NDArray[np.int64]
    ) -> CompiledLayers | None:
        panels = self._kernels.panels
        if panels is None or self._kernels.serving(decoder.spec) is None:
            return None
        if not isinstance(decoder, Decoder) or not CompiledLayers.serve(decoder):
            return None
        return CompiledLayers(panels, decoder, view, row_table)

    def _fastest_dtype(self, spec: ModelSpec) -> str:
        chosen: list[str] = []
        # A thread of its own: the number of threads torch uses is a property of the calling thread.
        thread = PinnedThread("measure-dtype", self._cores)
        thread.submit(lambda: chosen.append(fastest_dtype(spec, self._kernels)))
        thread.close()
        _LOG.info("dtype auto: %s is the fastest here", chosen[0])
        return chosen[0]
