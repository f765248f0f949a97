"""A unit as the control loop meets it: it obeys leases, in virtual time."""

from collections.abc import Set
from dataclasses import dataclass, field

from pdmux_actor.lease import (
    Lease,
    LoadProgress,
    LoadStage,
    ModelPhase,
    ModelStatus,
    SleepingWeights,
    UnitReport,
    WeightsOrigin,
)
from pdmux_actor.messages import LoadReport, ModelLoad
from placement.launch_limits import DEFAULT_LIMITS, LaunchLimits
from profiler.specs import DeviceSpec, ModelSpec

HEARTBEAT_S = 0.5
BLOCK_BYTES = 8192
TOTAL_BLOCKS = 4096
DOWNLOAD = LoadProgress(stage=LoadStage.DOWNLOADING, done_bytes=10, total_bytes=100)
SPEC = ModelSpec(
    architecture="LlamaForCausalLM",
    num_layers=4,
    hidden_size=128,
    intermediate_size=256,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    vocab_size=512,
    max_position_embeddings=1024,
    tie_word_embeddings=False,
    dtype="float32",
)


@dataclass
class FakeUnit:
    """Obeys leases as a unit does: the newest wins, a model needs one heartbeat to leave, `wake_s` to wake (it tells
    less) and `load_s` to load, after `download_s` where that is left of it. Models in `broken` do not load.
    """

    unit_id: str
    pool: str = "p"
    total_blocks: int = TOTAL_BLOCKS
    sizes_pool: bool = False
    lease: Lease | None = None
    phases: dict[str, ModelPhase] = field(default_factory=dict)
    is_leaving: bool = False
    wants_to_leave: bool = False
    failure: str | None = None
    node: str = "n"
    memory_bytes: int = 2**30
    broken: frozenset[str] = frozenset()
    device: str = ""
    measured_device: DeviceSpec | None = None
    host_memory_bytes: int = 0
    launch_limits: LaunchLimits = DEFAULT_LIMITS
    asleep: set[str] = field(default_factory=set)
    loaded: list[tuple[str, str]] = field(default_factory=list)  # how, and what
    origins: dict[str, WeightsOrigin] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    giving_way: dict[str, int] = field(default_factory=dict)
    drained_s: dict[str, float] = field(default_factory=dict)
    load_s: float = HEARTBEAT_S
    wake_s: float = HEARTBEAT_S
    download_s: dict[str, float] = field(default_factory=dict)
    loading_s: dict[str, float] = field(default_factory=dict)

    @property
    def bases(self) -> dict[str, str | None]:
        return {a.model: a.base for a in self.lease.models} if self.lease is not None else {}

    def report(self) -> UnitReport:
        quotas = {a.model: a.quota_blocks for a in self.lease.models} if self.lease is not None else {}
        return UnitReport(
            unit_id=self.unit_id,
            node=self.node,
            pool=self.pool,
            num_gpus=1,
            endpoint=f"{self.unit_id}:1",
            memory_bytes=self.memory_bytes,
            block_bytes=BLOCK_BYTES,
            total_blocks=self.total_blocks,
            lease_version=0 if self.lease is None else self.lease.version,
            models=(
                *(
                    ModelStatus(
                        model=m,
                        phase=p,
                        max_model_len=1024,
                        base=self.bases.get(m),
                        origin=self.origins.get(m),
                        progress=DOWNLOAD if self.downloads(m) else None,
                        error="its weights are cut short" if p is ModelPhase.FAILED else None,
                    )
                    for m, p in self.phases.items()
                ),
                *(_sleeping(m) for m in sorted(self.asleep - self.phases.keys())),
            ),
            host_memory_bytes=self.host_memory_bytes,
            load=LoadReport(
                models=tuple(
                    ModelLoad(
                        model=m,
                        running=self.running.get(m, 0),
                        giving_way=self.giving_way.get(m, 0),
                        waiting=0,
                        used_blocks=0,
                        quota_blocks=quotas.get(m, 0),
                        preemptions_total=0,
                        prompt_tokens_total=0,
                        output_tokens_total=0,
                    )
                    for m in self.phases
                ),
                total_blocks=self.total_blocks,
                free_blocks=self.total_blocks,
                prefill_sms=1,
                decode_sms=1,
                steps_total=0,
            ),
            is_leaving=self.is_leaving,
            wants_to_leave=self.wants_to_leave,
            failure=self.failure,
            device=self.device,
            measured_device=self.measured_device,
            launch_limits=self.launch_limits,
            sizes_pool=self.sizes_pool,
        )

    def obey(self, lease: Lease) -> None:
        if self.lease is not None and lease.version <= self.lease.version:
            return
        self.lease = lease
        if lease.pool_blocks is not None and not self.phases:
            self.total_blocks = lease.pool_blocks
        wanted = [a.model for a in lease.models]
        kept = {m: ModelPhase.READY if p is ModelPhase.DRAINING else p for m, p in self.phases.items() if m in wanted}
        kept |= dict.fromkeys(self._with_other_weights(lease) & kept.keys(), ModelPhase.LOADING)
        there = {m for m, p in self.phases.items() if p in (ModelPhase.READY, ModelPhase.DRAINING)}
        leaving = dict.fromkeys(there.difference(wanted), ModelPhase.DRAINING)
        on_the_way = {m: p for m, p in self.phases.items() if self.downloads(m)}
        self.phases = dict.fromkeys(wanted, ModelPhase.LOADING) | on_the_way | kept | leaving
        self.origins |= {a.model: a.origin for a in lease.models}
        self.asleep &= {a.model for a in lease.asleep} | set(wanted)

    def _with_other_weights(self, lease: Lease) -> Set[str]:
        return {a.model for a in lease.models if self.origins.get(a.model, a.origin) != a.origin}

    def downloads(self, model: str) -> bool:
        return self.phases.get(model) is ModelPhase.LOADING and self.download_s.get(model, 0.0) > 0

    def progress(self) -> None:
        """What leaves is gone once nothing of it runs or its time is up; what loads is ready."""
        downloading = {m for m in self.phases if self.downloads(m)}
        self.download_s |= {m: self.download_s[m] - HEARTBEAT_S for m in downloading}
        leased = {a.model for a in self.lease.models} if self.lease is not None else set()
        self.phases = {m: p for m, p in self.phases.items() if self.downloads(m) or m in leased or m not in downloading}
        draining = {m for m, p in self.phases.items() if p is ModelPhase.DRAINING}
        self.drained_s = {m: self.drained_s.get(m, 0.0) + HEARTBEAT_S for m in draining}
        if draining:
            assert self.lease is not None
            limits_s = self.lease.finish_s
            gone = {m for m in draining if not self.running.get(m) or self.drained_s[m] >= limits_s.get(m, 30.0)}
            self.asleep |= gone & {a.model for a in self.lease.asleep}
            self.phases = {m: p for m, p in self.phases.items() if m not in gone}
        loading = [m for m, p in self.phases.items() if p is ModelPhase.LOADING and m not in self.broken | downloading]
        self.loading_s = {m: self.loading_s.get(m, 0.0) + HEARTBEAT_S for m in loading}
        takes_s = {m: self.wake_s if m in self.asleep else self.load_s for m in loading}
        loading = [m for m in loading if self.loading_s[m] >= takes_s[m]]
        self.loaded += [("wake" if m in self.asleep else "load", m) for m in loading]
        self.asleep -= set(loading)
        fails = {m for m, p in self.phases.items() if m in self.broken and p is not ModelPhase.READY}
        self.phases |= dict.fromkeys(loading, ModelPhase.READY) | dict.fromkeys(fails, ModelPhase.FAILED)

    def ready(self) -> set[str]:
        return {m for m, p in self.phases.items() if p is ModelPhase.READY}


def _sleeping(model: str) -> ModelStatus:
    asleep = SleepingWeights(model=model, host_bytes=SPEC.weight_bytes, wake_s=0.1)
    return ModelStatus(model=model, phase=ModelPhase.ASLEEP, asleep=asleep)
