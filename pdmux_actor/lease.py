"""Defines the messages of control loop and unit: a unit registers by its first heartbeat; the answer is a lease."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from pdmux_actor.messages import LoadReport, Slo
from placement.launch_limits import DEFAULT_LIMITS, LaunchLimits
from placement.unit_role import UnitRole
from profiler.native_refusal import NativeDevice
from profiler.specs import DeviceSpec

QUIET_HEARTBEAT_S = 1.0
"""Between two heartbeats of a unit where nothing happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsOrigin:
    """Says what a model is loaded from, and how. Fields as of ModelAssignment."""

    source: str
    revision: str | None = None
    dtype: str | None = None
    weights: str | None = None
    max_model_len: int | None = None

    def name(self, base: "WeightsOrigin | None" = None) -> tuple[str | None, ...]:
        """Names what answers are computed with, those of an adapter with its `base`: under another name a model says
        something else. Its longest sequence changes none of them.
        """
        own = self.source, self.revision, self.dtype, self.weights
        return own if base is None else own + base.name()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAssignment:
    """A model that a unit shall serve. `source` is a local folder in Hugging Face layout or a Hugging Face id. With
    `base` it is an adapter of that model, which the lease names too: `source` and `revision` are the adapter's, its
    quota is a part of what the two have together.
    `weights`: what projections become, of profiler.weight_formats.QUANTISABLE; None: what the checkpoint has.
    """

    model: str
    source: str
    quota_blocks: int
    slo: Slo
    revision: str | None = None
    dtype: str | None = None
    weights: str | None = None
    max_model_len: int | None = None
    base: str | None = None

    @property
    def origin(self) -> WeightsOrigin:
        return WeightsOrigin(
            source=self.source,
            revision=self.revision,
            dtype=self.dtype,
            weights=self.weights,
            max_model_len=self.max_model_len,
        )

    def loaded_from(self, origin: WeightsOrigin) -> "ModelAssignment":
        """Returns the same with other weights."""
        return replace(
            self,
            source=origin.source,
            revision=origin.revision,
            dtype=origin.dtype,
            weights=origin.weights,
            max_model_len=origin.max_model_len,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """`version` grows with every change; a unit applies the newest it has seen. `stream_token` authenticates gateways
    on the unit's frame stream. `asleep` models keep their weights in host memory when they have left the device, if
    the unit has them and can; whatever else is there is forgotten. `pool_blocks` is the size of a KV pool that has
    none of its own; a unit that holds a model keeps the one it has. `finish_s`: how long streams of models that
    leave have to end, where that is less than the unit gives them.
    """

    version: int
    models: tuple[ModelAssignment, ...]
    policy: str
    stream_token: str
    asleep: tuple[ModelAssignment, ...] = ()
    pool_blocks: int | None = None
    finish_s: dict[str, float] = field(default_factory=dict)


class ModelPhase(StrEnum):
    LOADING = "loading"
    READY = "ready"
    STALLED = "stalled"  # loaded, but the engine makes no progress: ready again when it does, or the unit is replaced
    DRAINING = "draining"
    FAILED = "failed"
    ASLEEP = "asleep"  # it serves nothing; its weights are in host memory


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepingWeights:
    """`host_bytes` of a unit's host memory hold the model's weights; `wake_s` is what their way back should take, by
    the unit's last copies.
    """

    model: str
    host_bytes: int
    wake_s: float


class LoadStage(StrEnum):
    """Names what a load is at, in this order."""

    DOWNLOADING = "downloading"
    READING = "reading"
    CAPTURING = "capturing"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """`total_bytes` is as much as is known yet. While a GPU's graphs are captured all bytes are there."""

    stage: LoadStage
    done_bytes: int
    total_bytes: int
    done_graphs: int = 0
    total_graphs: int = 0

    @property
    def share(self) -> float:
        """Returns how much of the stage is done."""
        if self.stage is LoadStage.CAPTURING:
            return min(1.0, self.done_graphs / max(1, self.total_graphs))
        return self.bytes_share

    @property
    def bytes_share(self) -> float:
        return min(1.0, self.done_bytes / max(1, self.total_bytes))


def capturing(read: LoadProgress | None, done_graphs: int, total_graphs: int) -> LoadProgress:
    """Returns the stage after `read`, which is the last that was told of its bytes."""
    num_bytes = 0 if read is None else read.total_bytes
    return LoadProgress(
        stage=LoadStage.CAPTURING,
        done_bytes=num_bytes,
        total_bytes=num_bytes,
        done_graphs=done_graphs,
        total_graphs=total_graphs,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """`max_model_len` is known once the model is READY; `error` says why it FAILED and the remedy. `asleep` is told of
    a model that is ASLEEP, `progress` of one that is LOADING, `base` of an adapter. `origin` is that of the weights
    which the unit has, or loads; None: it is of a release that does not tell.
    """

    model: str
    phase: ModelPhase
    max_model_len: int | None = None
    error: str | None = None
    asleep: SleepingWeights | None = None
    progress: LoadProgress | None = None
    base: str | None = None
    origin: WeightsOrigin | None = None

    @property
    def is_downloading(self) -> bool:
        """Says whether nothing of it is on the device yet: its files are on their way to the disk."""
        stage = None if self.progress is None else self.progress.stage
        return self.phase is ModelPhase.LOADING and stage is LoadStage.DOWNLOADING


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitReport:
    """One heartbeat. `unit_id` is new for every start of the process; `endpoint` is host:port of its frame stream.
    `is_leaving`: it opens no more streams, because it shuts down or its engine is gone: `failure` then says why.
    `wants_to_leave`: it was told to go and serves on until its models are elsewhere, or its time is over.
    `max_models` None: its engine serves as many as fit. `constrains`: it can make outputs follow a JSON schema.
    `host_memory_bytes` are there for the weights of models that sleep. `launch_limits` are its engine's. `engine` is
    its kind and version. `measured_device` is what the engine measured of its device at its start; None where it knows
    the device.
    `sizes_pool`: its lease says how large its KV pool is; `total_blocks` is 0 until then. `native_on` as in
    UnitCapacity.
    """

    unit_id: str
    node: str
    pool: str
    num_gpus: int
    endpoint: str
    memory_bytes: int
    block_bytes: int
    total_blocks: int
    lease_version: int
    models: tuple[ModelStatus, ...]
    load: LoadReport | None = None
    is_leaving: bool = False
    wants_to_leave: bool = False
    failure: str | None = None
    device: str = ""
    engine: str = ""
    measured_device: DeviceSpec | None = None
    max_models: int | None = None
    constrains: bool = False
    host_memory_bytes: int = 0
    launch_limits: LaunchLimits = DEFAULT_LIMITS
    sizes_pool: bool = False
    role: UnitRole = UnitRole.BOTH
    native_on: NativeDevice | None = None

    def base_of(self, status: ModelStatus) -> ModelStatus | None:
        """Returns what it says of an adapter's base; None of what is no adapter."""
        return None if status.base is None else next((s for s in self.models if s.model == status.base), None)

    def weights_of(self, status: ModelStatus) -> tuple[str | None, ...]:
        """Names a model's weights as `WeightsOrigin.name` does; () where the unit does not tell."""
        if status.origin is None:
            return ()
        base = self.base_of(status)
        return status.origin.name(None if base is None else base.origin)
