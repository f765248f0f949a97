"""The executor on CPU cores: two lanes of threads over one block pool."""

import logging
import queue
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import psutil

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.executor.cpu_device import measure_cpu
from pdmux_actor.executor.kv_storage import KvStorage
from pdmux_actor.executor.lanes import Lane as CpuLane
from pdmux_actor.executor.lanes import PinnedThread, available_cores
from pdmux_actor.executor.model_runner import AttachedModel, ModelRunner
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.models.checkpoint import eos_token_ids, read_json, resolve_checkpoint
from pdmux_actor.models.config import DecoderConfig
from pdmux_actor.models.decoder import Decoder
from pdmux_actor.models.fastest_dtype import fastest_dtype
from pdmux_actor.models.weights import load_weights
from pdmux_actor.scheduling.launch import Completion, ComputeLaunch, DropPrefill, Lane, Launch, Repartition, lane_of
from profiler.specs import AUTO_DTYPE, DeviceSpec

_LOG = logging.getLogger(__name__)


class TorchCpuExecutor:
    """Implements executor.base.Executor.

    Decode takes the partition's lowest cores, prefill its highest. Until the first Repartition either lane may use all.
    """

    def __init__(
        self,
        *,
        kv_pool_bytes: int,
        block_bytes: int,
        num_cores: int | None = None,
        default_dtype: str | None = None,
        device: DeviceSpec | None = None,
    ) -> None:
        """`num_cores` None: all this process may use. `default_dtype` None: each checkpoint's own; "auto": the fastest.
        `device` None: measured now.
        """
        cores = available_cores()
        if num_cores is not None and num_cores > len(cores):
            _LOG.warning("%d cores are configured, this process may use %d", num_cores, len(cores))
        self._cores = cores[:num_cores]
        self.device = device or measure_cpu(len(self._cores))
        self.block_bytes = block_bytes
        self.total_blocks = kv_pool_bytes // block_bytes
        self._default_dtype = default_dtype
        self._storage = KvStorage(self.total_blocks, block_bytes)
        self._loaded: dict[str, Decoder] = {}
        self._attached: dict[str, AttachedModel] = {}
        self._runners = {lane: ModelRunner(self._attached) for lane in Lane}
        self._lanes = {lane: CpuLane(lane.value, self._cores) for lane in Lane}
        self._lane_cores = dict.fromkeys(Lane, self._cores)
        self._completions: queue.SimpleQueue[Completion | None] = queue.SimpleQueue()

    def now(self) -> float:
        return time.perf_counter()

    def load_model(
        self, model: str, source: str, *, revision: str | None, dtype: str | None, max_model_len: int | None
    ) -> ModelInfo:
        folder = resolve_checkpoint(model, source, revision)
        raw_config = read_json(model, folder, "config.json")
        dtype = dtype or self._default_dtype
        config = DecoderConfig.from_config(model, raw_config, None if dtype == AUTO_DTYPE else dtype)
        if dtype == AUTO_DTYPE:
            config = DecoderConfig.from_config(model, raw_config, self._fastest_dtype(config))
        geometry = KvGeometry.of(config.spec, self.block_bytes)
        self._check_fits(model, config, geometry)
        info = ModelInfo(
            model=model,
            spec=config.spec,
            geometry=geometry,
            eos_token_ids=eos_token_ids(model, folder, raw_config),
            max_model_len=_max_model_len(model, config, max_model_len),
        )
        self._loaded[model] = Decoder(config, load_weights(model, folder, config), info.max_model_len)
        return info

    def attach_model(self, info: ModelInfo, row_table: npt.NDArray[np.int64]) -> None:
        self._attached[info.model] = AttachedModel(
            info=info,
            decoder=self._loaded.pop(info.model),
            kv=self._storage.view(info.spec, info.geometry),
            row_table=row_table,
        )

    def detach_model(self, model: str) -> None:
        self._loaded.pop(model, None)
        self._attached.pop(model, None)
        for runner in self._runners.values():
            runner.forget_model(model)

    def submit(self, launch: Launch) -> None:
        match launch:
            case Repartition():
                self._repartition(launch)
            case DropPrefill(batch_id=batch_id):
                drop = partial(self._runners[Lane.PREFILL].drop_prefill, batch_id)
                self._lanes[Lane.PREFILL].submit_in_place(drop)
            case _:
                lane = lane_of(launch)
                self._lanes[lane].submit(partial(self._execute, self._runners[lane], launch), self._lane_cores[lane])

    def wait(self, deadline_s: float | None) -> Sequence[Completion]:
        timeout_s = None if deadline_s is None else max(0.0, deadline_s - self.now())
        items: list[Completion | None] = []
        try:
            items.append(self._completions.get(timeout=timeout_s))
            while True:
                items.append(self._completions.get_nowait())
        except queue.Empty:
            return tuple(item for item in items if item is not None)

    def wake(self) -> None:
        self._completions.put(None)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()

    def _execute(self, runner: ModelRunner, launch: ComputeLaunch) -> None:
        started_s = self.now()
        completion = Completion(launch=launch, started_s=started_s, finished_s=started_s)
        try:
            produced = runner.run(launch)
            completion = replace(completion, tokens=produced.tokens, sequence_errors=produced.errors)
        except Exception as error:
            # The lane serves other models and sequences: a failed launch fails its own sequences only.
            _LOG.exception("a launch of model %s failed", launch.model)
            completion = replace(completion, error=f"{type(error).__name__}: {error}")
        self._completions.put(replace(completion, finished_s=self.now()))

    def _repartition(self, shares: Repartition) -> None:
        total = shares.prefill_sms + shares.decode_sms
        assert total <= len(self._cores), f"{shares} exceeds the {len(self._cores)} cores of the device"
        self._lane_cores = {
            Lane.PREFILL: self._cores[len(self._cores) - shares.prefill_sms :],
            Lane.DECODE: self._cores[: shares.decode_sms],
        }

    def _fastest_dtype(self, config: DecoderConfig) -> str:
        chosen: list[str] = []
        # A thread of its own: the number of threads torch uses is a property of the calling thread.
        thread = PinnedThread("measure-dtype", self._cores)
        thread.submit(lambda: chosen.append(fastest_dtype(config.spec)))
        thread.close()
        _LOG.info("dtype auto: %s is the fastest here", chosen[0])
        return chosen[0]

    def _check_fits(self, model: str, config: DecoderConfig, geometry: KvGeometry) -> None:
        spec = config.spec
        if geometry.tokens_per_row == 0:
            needed_bytes = 2 * spec.head_dim * spec.dtype_bytes
            raise ModelLoadError(
                model=model,
                reason=f"a token block of {self.block_bytes} bytes holds no token of head_dim={spec.head_dim}",
                remedy=f"set the engine's block_bytes to at least {needed_bytes}",
            )
        available_bytes = psutil.virtual_memory().available
        if spec.weight_bytes > available_bytes:
            raise ModelLoadError(
                model=model,
                reason=f"its weights take {spec.weight_bytes} bytes as {spec.dtype}, {available_bytes} are free",
                remedy="use a smaller model or dtype, a smaller KV pool, or place fewer models here",
            )


def _max_model_len(model: str, config: DecoderConfig, requested: int | None) -> int:
    limit = config.spec.max_position_embeddings
    window = config.attention_window_tokens
    if window is not None and window < limit:
        _LOG.warning("%s: sequences are limited to its sliding window of %d tokens", model, window)
        limit = window
    if requested is not None and requested > limit:
        _LOG.warning("%s: max_model_len %d exceeds what the checkpoint supports, %d", model, requested, limit)
    return limit if requested is None else min(requested, limit)
