"""Engines whose launches `muxfleet profile` measures: muxfleet's own, and SGLang."""

from dataclasses import dataclass
from typing import Literal, Protocol

from pdmux_actor.backends.sglang.options import SglangOptions
from pdmux_actor.backends.sglang.probe import SglangProbe
from pdmux_actor.backends.sglang.process import device_of
from pdmux_actor.executor.probe import ExecutorProbe
from pdmux_actor.scheduling.settings import SchedulerSettings
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.executors import build_executor
from profiler.partition_rates import PartitionRate
from profiler.probe import Probe
from profiler.specs import DeviceSpec
from profiler.sweep import partition_shares

GPU_KV_BYTES = 16 << 30  # where nothing else says how large a pool is measured with


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelToProfile:
    name: str
    source: str
    revision: str | None = None
    dtype: str | None = None
    weights: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineToProfile:
    """Describes an engine as a pool of the fleet file would start it. `cores` are for CPUs, `gpu_type` and `sglang` for
    SGLang.
    """

    models: tuple[ModelToProfile, ...]
    kv_pool_bytes: int
    block_bytes: int
    cores: int | None
    max_batch_tokens: int
    max_sequences: int
    device: Literal["cpu", "cuda"] = "cpu"
    num_gpus: int = 1
    gpu_type: str | None = None
    sglang: SglangOptions | None = None

    @property
    def name(self) -> str:
        return "native" if self.sglang is None else "sglang"


class ProfiledEngine(Protocol):
    """One probe at a time."""

    device: DeviceSpec

    def probe(self, model: ModelToProfile) -> Probe:
        """Raises ModelLoadError, EngineStartFailed."""
        ...

    def partition_rates(self) -> tuple[PartitionRate, ...]:
        """Measures the rates of every share that is measured, where a GPU is partitioned. Before any probe."""
        ...

    def close(self) -> None:
        """Also of the probe that is open."""
        ...


def open_engine(engine: EngineToProfile) -> ProfiledEngine:
    """Raises DeviceUnavailable: no GPU is here."""
    return _Native(engine) if engine.sglang is None else _Sglang(engine, engine.sglang)


class _Native:
    def __init__(self, engine: EngineToProfile) -> None:
        self._engine = engine
        settings = EngineSettings(
            kind="torch_cuda" if engine.device == "cuda" else "torch_cpu",
            kv_pool_bytes=engine.kv_pool_bytes,
            block_bytes=engine.block_bytes,
            num_cores=engine.cores,
        )
        self._executor = build_executor(settings, None)
        self.device = self._executor.device

    def probe(self, model: ModelToProfile) -> Probe:
        return ExecutorProbe(
            self._executor,
            model=model.name,
            source=model.source,
            revision=model.revision,
            dtype=model.dtype,
            weights=model.weights,
            max_batch_tokens=self._engine.max_batch_tokens,
            max_sequences=self._engine.max_sequences,
        )

    def partition_rates(self) -> tuple[PartitionRate, ...]:
        if self._engine.device == "cpu":
            return ()
        from pdmux_actor.executor.torch_cuda import TorchCudaExecutor  # needs triton

        assert isinstance(self._executor, TorchCudaExecutor)
        return self._executor.partition_rates(partition_shares(self.device))

    def close(self) -> None:
        self._executor.close()


class _Sglang:
    """SGLang holds one model: every probe starts it anew."""

    def __init__(self, engine: EngineToProfile, options: SglangOptions) -> None:
        # Launches are timed one by one: nothing of one may run in the time of the next.
        args = {**options.args, "disable_overlap_schedule": True}
        self._settings = EngineSettings(
            kind="sglang_cuda" if engine.device == "cuda" else "sglang_cpu",
            kv_pool_bytes=engine.kv_pool_bytes,
            block_bytes=engine.block_bytes,
            num_cores=engine.cores,
            device_type=engine.gpu_type,
            policy="muxwise",
            scheduler=SchedulerSettings(
                max_batch_tokens=engine.max_batch_tokens, max_running_sequences=engine.max_sequences
            ),
            num_gpus=engine.num_gpus,
            sglang=SglangOptions(multiplexing=options.multiplexing, decode_sms=options.decode_sms, args=args),
        )
        self.device = device_of(self._settings)
        self._probe: SglangProbe | None = None

    def probe(self, model: ModelToProfile) -> Probe:
        self._probe = SglangProbe(
            self._settings,
            model=model.name,
            source=model.source,
            revision=model.revision,
            dtype=model.dtype,
        )
        return self._probe

    def partition_rates(self) -> tuple[PartitionRate, ...]:
        return ()

    def close(self) -> None:
        if self._probe is not None:
            self._probe.close()
