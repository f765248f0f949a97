"""A small model of units under a control loop, in virtual time."""

from dataclasses import dataclass, field

from deploy.catalog import Catalog, CatalogModel
from deploy.control_loop import ControlLoop
from deploy.settings import ModelSection
from pdmux_actor.lease import Lease, ModelPhase, ModelStatus, UnitReport
from pdmux_actor.messages import LoadReport, ModelLoad
from placement.solvers.memory_greedy import MemoryGreedySolver
from profiler.specs import ModelSpec

HEARTBEAT_S = 0.5
BLOCK_BYTES = 8192
TOTAL_BLOCKS = 4096
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


def catalog_model(model: str, *, replicas: int = 1, spec: ModelSpec | None = SPEC, source: str = "/m") -> CatalogModel:
    settings = ModelSection.model_validate(
        {"id": model, "source": source, "replicas": {"min": replicas, "max": replicas}}
    )
    return CatalogModel(settings=settings, dtype=None, created_s=7, spec=spec, problem=None if spec else "not found")


def catalog(*models: str | CatalogModel, policy: str = "mux") -> Catalog:
    return Catalog(models=tuple(m if isinstance(m, CatalogModel) else catalog_model(m) for m in models), policy=policy)


@dataclass
class FakeUnit:
    """Obeys leases as a unit does: the newest wins, a model needs one heartbeat to load."""

    unit_id: str
    pool: str = "p"
    total_blocks: int = TOTAL_BLOCKS
    lease: Lease | None = None
    phases: dict[str, ModelPhase] = field(default_factory=dict)
    is_leaving: bool = False

    def report(self) -> UnitReport:
        quotas = {a.model: a.quota_blocks for a in self.lease.models} if self.lease is not None else {}
        return UnitReport(
            unit_id=self.unit_id,
            node="n",
            pool=self.pool,
            num_gpus=1,
            endpoint=f"{self.unit_id}:1",
            memory_bytes=2**30,
            block_bytes=BLOCK_BYTES,
            total_blocks=self.total_blocks,
            lease_version=0 if self.lease is None else self.lease.version,
            models=tuple(ModelStatus(model=m, phase=p, max_model_len=1024) for m, p in self.phases.items()),
            load=LoadReport(
                models=tuple(
                    ModelLoad(
                        model=m,
                        running=0,
                        waiting=0,
                        used_blocks=0,
                        quota_blocks=quotas[m],
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
        )

    def obey(self, lease: Lease) -> None:
        if self.lease is not None and lease.version <= self.lease.version:
            return
        self.lease = lease
        wanted = [a.model for a in lease.models]
        self.phases = {m: self.phases.get(m, ModelPhase.LOADING) for m in wanted}

    def finish_loading(self) -> None:
        self.phases = dict.fromkeys(self.phases, ModelPhase.READY)

    def ready(self) -> set[str]:
        return {m for m, p in self.phases.items() if p is ModelPhase.READY}


class World:
    """`leases` holds every lease that a unit was ever given, by unit and version."""

    def __init__(self, wanted: Catalog, *, expected_units: int) -> None:
        self.now_s = 100.0
        self.units: dict[str, FakeUnit] = {}
        self.leases: dict[tuple[str, int], Lease] = {}
        self._catalog = wanted
        self._expected = expected_units
        self._started_units = 0
        self.restart_control_loop()

    def restart_control_loop(self) -> None:
        self.loop = ControlLoop(stream_token="t", first_version=int(self.now_s * 1000), started_s=self.now_s)
        self.want(self._catalog)

    def want(self, wanted: Catalog, *, expected_units: int | None = None) -> None:
        self._catalog = wanted
        self._expected = self._expected if expected_units is None else expected_units
        self.loop.set_catalog(wanted, expected_units={"p": self._expected}, solver=MemoryGreedySolver())

    def start_unit(self, *, total_blocks: int = TOTAL_BLOCKS) -> FakeUnit:
        self._started_units += 1
        unit = FakeUnit(unit_id=f"u{self._started_units}", total_blocks=total_blocks)
        self.units[unit.unit_id] = unit
        return unit

    def kill_unit(self, unit_id: str) -> None:
        del self.units[unit_id]

    def beat(self, times: int = 1, *, silent: frozenset[str] = frozenset()) -> None:
        for _ in range(times):
            self.now_s += HEARTBEAT_S
            for unit in self.units.values():
                if unit.unit_id in silent:
                    continue
                lease = self.loop.heartbeat(unit.report(), self.now_s)
                known = self.leases.setdefault((unit.unit_id, lease.version), lease)
                assert known == lease, "one version, two contents"
                assert sum(a.quota_blocks for a in lease.models) <= unit.total_blocks
                unit.finish_loading()
                unit.obey(lease)
