"""The fleet file: its schema, and the only place that reads files for configuration."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ByteSize, Field, PositiveFloat, PositiveInt
from pydantic import ValidationError as PydanticValidationError

from deploy.errors import FleetFileError, SourceNotFound
from deploy.fleet_file.fleet_problems import (
    Problem,
    adapter_problems,
    opposed_settings,
    problems_of,
    repeated,
    role_problems,
    sglang_problems,
    unknown_device,
    without_weights,
)
from deploy.fleet_file.forecast_section import check_trace
from deploy.fleet_file.host_memory import HostMemory, check_host_memory, host_memory_problems
from deploy.fleet_file.model_section import ModelSection
from deploy.fleet_file.scaling_section import NodesSection, ScalingSection, scaling_problems, with_trace_beside
from deploy.fleet_file.section import (
    BatchSection,
    DrainSection,
    SchedulerSection,
    Section,
    StateSection,
    WatchSection,
)
from deploy.fleet_file.setting_types import (
    BackendName,
    DeviceName,
    Dtype,
    LabelKey,
    LabelValue,
    Name,
    PolicyName,
    SolverName,
    WrittenReplan,
)
from deploy.fleet_file.size_types import CPU_KV_BYTES, KvMemory, Size
from deploy.fleet_file.source_paths import absolute, resolve_source
from deploy.fleet_file.yaml_source import parse_yaml
from pdmux_actor.backends.entries.entry import BackendEntry
from pdmux_actor.backends.registry import BACKENDS, NAMED, backend_on
from pdmux_actor.backends.sglang.options import SglangOptions
from pdmux_actor.models.gguf_files.hub_source import NOWHERE, is_nowhere
from pdmux_actor.models.gguf_files.layout_folder import is_gguf
from profiler.guard_file import read_guard_grid

MAX_FILE_BYTES = 1024 * 1024
MAX_GPUS = 20_000
_BACKENDS = " ".join(f"{name}: {BACKENDS[name].about}." for name in NAMED)


class SglangSection(Section):
    """Holds what pools whose backend is sglang can set."""

    multiplexing: Literal["auto", "on", "off"] = "auto"
    """auto: on cuda, for models that SGLang can run in slices of layers. on: refuse other models."""
    decode_sms: tuple[PositiveInt, ...] | None = None
    """Decode shares of the partitions that are created at start, ascending. Default: six, over the whole range."""
    args: Mapping[str, str | bool | int | float] = Field(default_factory=dict)
    """Further arguments of SGLang's server, for example {attention_backend: fa3}."""
    sleep: bool = False
    """On cuda: a unit whose model leaves keeps its weights in host memory until another comes: a quick return."""

    def options(self) -> SglangOptions:
        return SglangOptions(
            multiplexing=self.multiplexing, decode_sms=self.decode_sms, args=dict(self.args), sleep=self.sleep
        )


class PoolSection(Section):
    """Nodes that are alike."""

    name: Name = "default"
    device: Literal["cpu", "cuda", "simulated"] = "cpu"
    """cuda: NVIDIA GPUs of sm_80 or newer."""
    backend: BackendName | None = None
    """Default: engine.backend. An SGLang unit serves one model."""
    sglang: SglangSection = SglangSection()
    gpu_type: DeviceName | None = None
    """For cuda and simulated: a device the profiler knows, for example H100."""
    gpus_per_node: Annotated[int, Field(ge=1, le=128)] = 1
    role: Literal["prefill", "decode"] | None = None
    """prefill: units compute prompts up to the first token. decode: units go on, with KV that they fetch there. Either
    every pool has a role, or none (docs/serving-modes.md). Default: every unit does both."""
    mesh_gpus: Literal[1, 2, 4, 8] = 1
    """GPUs of one unit: one tensor-parallel group. For cpu: processes that divide a unit's cores and models."""
    nodes: NodesSection = NodesSection()
    scaling: ScalingSection | None = None
    """How many of nodes.min to nodes.max there shall be. Default: by demand, with its defaults."""
    node_labels: Mapping[LabelKey, LabelValue] = Field(default_factory=dict)
    """Labels of the Ray nodes that the pool's units run on, for example {muxfleet.io/pool: h100}. Default: any node.
    With several pools in one cluster, give each its own. One machine (`muxfleet up`) stands for all pools."""
    cores: PositiveInt | None = None
    """For cpu: cores of one unit. Default: all."""
    kv_memory: KvMemory = None
    """Token-block pool of one unit, for example 40GiB. Default: auto, what the models that are planned on such units
    leave of their memory (docs/planner.md); 256MiB where a CPU serves."""
    device_memory: Size | None = None
    """Memory for weights and KV of one unit. Default: what the device has."""
    host_memory: HostMemory = None
    """Host memory of one unit in which models that leave it keep their weights, to be back in the time of a copy; for
    example 64GiB, or 0 for none. Default: auto, a quarter of the node's memory, shared by its units."""
    profile: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """What `muxfleet profile` measured on such a node (relative to this file); it must be there on every node."""
    guard: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """File (relative to this file, in a folder that is there) in which the units of a node keep what they learn about
    contention between prefill and decode: written when a unit stops, read when one starts. Default: learned anew."""

    @property
    def kv_bytes(self) -> ByteSize | None:
        """None: the plan sizes the pool."""
        return self.kv_memory or (CPU_KV_BYTES if self.device != "cuda" and self.gpu_type is None else None)

    @property
    def devices_per_node(self) -> int:
        """Counts what units are made of, `mesh_gpus` each: GPUs, or ranks of the one unit that a node of CPUs is."""
        return self.mesh_gpus if self.device == "cpu" else self.gpus_per_node

    @property
    def num_units(self) -> int:
        """Counts those that are there at the start."""
        return self.nodes.min * self.devices_per_node // self.mesh_gpus

    @property
    def most_units(self) -> int:
        return (self.nodes.max or self.nodes.min) * self.devices_per_node // self.mesh_gpus


class EngineSection(SchedulerSection):
    backend: BackendName = Field(default="native", description=_BACKENDS)
    policy: PolicyName = "mux"
    block_bytes: Size = ByteSize(16 * 1024)
    """One token block: K and V of one KV head in one layer."""
    dtype: Dtype | None = None
    """Default: what each checkpoint says. "auto": float32 or bfloat16, whichever the cores compute faster in."""
    watch: WatchSection = WatchSection()


class PlacementSection(Section):
    solver: SolverName = "search"
    """search fits replicas to demand and SLOs, and moves little. docs/planner.md has the others, which are there to
    compare with."""
    replan: WrittenReplan = "auto"
    """Whether demand moves models: auto moves, shadow only records what it would do, off does neither; scratch plans as
    if nothing were loaded (a baseline for experiments)."""
    replan_every_s: PositiveFloat = 15.0
    """Between two looks at demand, unless the rate of a model jumps."""
    min_gain: Annotated[float, Field(ge=0, le=1)] = 0.02
    """Share of demand that a plan must serve in addition to be worth moving for."""
    min_residency_s: Annotated[float, Field(ge=0)] = 60.0
    """A replica stays at least so long, unless a model that has none waits for its place."""
    max_moves_per_min: PositiveInt = 6
    """Loads of models that are served already."""
    learn: bool = True
    """Whether plans are corrected by what units measure of their steps; it is measured and told all the same."""
    part_neighbours: bool = True
    """Whether plans count on what models of a unit were seen to lose to each other beyond what is estimated."""
    max_cost_per_hour: PositiveFloat | None = None
    """Of all pools together, by their scaling.cost_per_hour: none grows beyond it. Default: any."""
    max_gpus: PositiveInt | None = None
    """Of all pools together: none grows beyond it. Default: any."""


class GatewaySection(Section):
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    replicas: Annotated[int, Field(ge=1, le=1000)] = 2
    node_labels: Mapping[LabelKey, LabelValue] = Field(default_factory=dict)
    """Ray's labels of the nodes that gateways run on. Default: any."""
    proxy: Literal["auto", "haproxy", "python"] = "auto"
    """What stands before the gateways. haproxy is several times cheaper per token; auto takes it where it runs."""
    max_body_bytes: Size = ByteSize(8 * 1024 * 1024)
    max_queued_requests: PositiveInt = 512
    """Requests of one model that may wait in one gateway replica; more are answered 429 with Retry-After."""
    hold_s: PositiveFloat = 30.0
    """How long a request waits for its turn (then 429) or for its model to become ready (then 503), unless it brings a
    target of its own. Models that take turns come round in that time as far as loads leave it; an answer that has
    begun waits ten times as long for its next turn."""
    unit_suspect_s: PositiveFloat = 3.0
    """The streams of a unit that says nothing for so long go on on other units that can serve them."""
    unit_lost_s: PositiveFloat = 10.0
    """A unit that says nothing for so long is lost to the gateway, whether or not there is another."""
    api_keys: Annotated[str, Field(min_length=1)] | None = None
    """File of API keys (relative to this file), from `muxfleet keys`; read again when changed. Default: open to all."""
    request_log: bool = False
    """One JSON line per request on the gateways' standard output."""
    cors_origins: tuple[Annotated[str, Field(min_length=1, max_length=4096)], ...] = ()
    """Web pages of these origins may call the API from a browser, such as https://chat.example.org; "*": all may."""
    template_timeout_s: PositiveFloat = 2.0
    """How long a model's chat template may take for one request; then it is stopped and the request answered 400."""
    batches: BatchSection = BatchSection()
    console: bool = True
    """Serves the page /console, which shows the fleet to whoever has an admin key; where there are no keys, to all."""


class FleetFile(Section):
    name: Name = "fleet"
    models: Annotated[tuple[ModelSection, ...], Field(min_length=1)]
    pools: Annotated[tuple[PoolSection, ...], Field(min_length=1)] = (PoolSection(),)
    engine: EngineSection = EngineSection()
    placement: PlacementSection = PlacementSection()
    gateway: GatewaySection = GatewaySection()
    drain: DrainSection = DrainSection()
    state: StateSection = StateSection()

    def backend(self, pool: PoolSection) -> BackendEntry:
        return backend_on(pool.device, pool.backend or self.engine.backend)

    def pool(self, name: str) -> PoolSection:
        return next(p for p in self.pools if p.name == name)


def fleet_json_schema() -> dict[str, Any]:
    schema = FleetFile.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "muxfleet fleet file"
    return schema


def read_fleet_file(path: Path, source_root: Path | None = None) -> FleetFile:
    """Sources come back as absolute folders or Hugging Face ids. With `source_root`, relative folders are looked up
    there instead of beside the file: for a cluster whose nodes hold the checkpoints elsewhere.

    Raises:
        FleetFileError: every problem of the file, one line each.
    """
    return parse_fleet_file(read_text(path), name=str(path), base=source_root or path.resolve().parent)


def read_text(path: Path) -> str:
    """Reads the text of a settings file. Raises FleetFileError: it is not there, not readable, too large or not
    UTF-8.
    """
    name = str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise FleetFileError([f"{name}: no such file"]) from error
    except OSError as error:
        raise FleetFileError([f"{name}: cannot be read: {error.strerror}"]) from error
    if len(raw) > MAX_FILE_BYTES:
        raise FleetFileError([f"{name}: larger than {MAX_FILE_BYTES} bytes; is this a fleet file?"])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FleetFileError([f"{name}: not UTF-8 text (byte {error.start}); save it as UTF-8"]) from error


def parse_fleet_file(text: str, *, name: str, base: Path) -> FleetFile:
    """Raises FleetFileError: every problem of the text, one line each."""
    source = parse_yaml(text, name)
    try:
        # Strict JSON mode refuses "yes" for a number and takes YAML lists for tuples.
        fleet = FleetFile.model_validate_json(json.dumps(source.data, default=str), strict=True)
    except PydanticValidationError as error:
        raise FleetFileError([p.line(source) for p in problems_of(error, FleetFile)]) from error
    problems = list(semantic_problems(fleet))
    if problems:
        raise FleetFileError([p.line(source) for p in problems])
    return resolved_fleet(fleet, base)


def resolved_fleet(fleet: FleetFile, base: Path) -> FleetFile:
    models = tuple(m.model_copy(update={"source": resolve_source(m.source, base)}) for m in fleet.models)
    pools = tuple(
        p.model_copy(
            update={
                "profile": _resolved(p.profile, base),
                "guard": _resolved(p.guard, base),
                "scaling": with_trace_beside(p.scaling, base),
            }
        )
        for p in fleet.pools
    )
    keys = _resolved(fleet.gateway.api_keys, base)
    batches = fleet.gateway.batches
    if batches.folder is not None and "://" not in batches.folder:
        batches = batches.model_copy(update={"folder": _resolved(batches.folder, base)})
    gateway = fleet.gateway.model_copy(update={"api_keys": keys, "batches": batches})
    state = fleet.state.model_copy(update={"folder": _resolved(fleet.state.folder, base)})
    return fleet.model_copy(update={"models": models, "pools": pools, "gateway": gateway, "state": state})


def _resolved(file: str | None, base: Path) -> str | None:
    return None if file is None else absolute(file, base)


def check_sources(fleet: FleetFile) -> None:
    """Checks the models' sources before a command starts a fleet on this machine.

    Raises:
        SourceNotFound: a local checkpoint has no config.json, an adapter no adapter_config.json.
        ProfileUnusable: a pool's profile is none, or its guard is another file or in no folder.
        HostMemoryTooSmall: a pool's host_memory holds no model.
        FleetFileError: the trace of a pool's forecast is none.
    """
    for i, pool in enumerate(fleet.pools):
        if pool.scaling is not None and pool.scaling.forecast is not None:
            check_trace(pool.scaling.forecast, f"pools[{i}].scaling.forecast")
        if pool.profile is not None:
            # Brings pyarrow, which a fleet without profiles does without.
            from profiler.profile_file import read_profile

            read_profile(Path(pool.profile))
        if pool.guard is not None:
            read_guard_grid(Path(pool.guard))
    for model in fleet.models:
        config, layout = "config.json", "a file that ends in .gguf, or a folder in Hugging Face layout with a"
        if model.base is not None:
            config, layout = "adapter_config.json", "a folder as PEFT saves adapters, with an"
        if model.base is None and is_gguf(model.source) and os.path.isfile(model.source):
            continue
        if model.base is None and is_nowhere(model.source):
            raise SourceNotFound(model=model.id, source=model.source, remedy=NOWHERE)
        if os.path.isabs(model.source) and not os.path.isfile(Path(model.source) / config):
            raise SourceNotFound(model=model.id, source=model.source, remedy=f"it must be {layout} {config}")
    check_host_memory(fleet)


def semantic_problems(fleet: FleetFile) -> list[Problem]:
    """Finds the problems that a schema cannot say."""
    problems = repeated([m.id for m in fleet.models], "models", "id")
    problems += repeated([p.name for p in fleet.pools], "pools", "name")
    gpus = sum((p.nodes.max or p.nodes.min) * p.gpus_per_node for p in fleet.pools)
    if gpus > MAX_GPUS:
        problems.append(
            Problem(path=("pools",), value=gpus, remedy=f"GPUs in all, {MAX_GPUS} at most; split the fleet")
        )
    suspect_s, lost_s = fleet.gateway.unit_suspect_s, fleet.gateway.unit_lost_s
    problems += opposed_settings(fleet.models, fleet.engine.watch, unit_suspect_s=suspect_s, unit_lost_s=lost_s)
    without_adapters = [p.name for p in fleet.pools if not _takes_adapters(p, fleet.backend(p))]
    problems += adapter_problems(fleet.models, without_adapters)
    moves_kv = [p.device in fleet.backend(p).moves_kv_on and p.mesh_gpus == 1 for p in fleet.pools]
    problems += role_problems([p.role for p in fleet.pools], moves_kv)
    if fleet.state.folder is not None and fleet.state.store != "file":
        remedy = f"store: {fleet.state.store} keeps no file; remove it, or set store: file"
        problems.append(Problem(path=("state", "folder"), value=fleet.state.folder, remedy=remedy))
    for i, pool in enumerate(fleet.pools):
        backend, sleeps = fleet.backend(pool), pool.sglang.sleep
        problems += _pool_problems(pool, ("pools", i), backend)
        problems += host_memory_problems(pool.host_memory, backend=backend.name, sleeps=sleeps, path=("pools", i))
        if backend.name == "sglang":
            problems += sglang_problems(
                pool.sglang.options(),
                device=pool.device,
                gpu_type=pool.gpu_type,
                policy=fleet.engine.policy,
                weights=[model.weights for model in fleet.models],
                path=("pools", i),
            )
    return problems


def _takes_adapters(pool: PoolSection, backend: BackendEntry) -> bool:
    return backend.takes_adapters and (pool.mesh_gpus == 1 or pool.device != "cuda")


def _pool_problems(pool: PoolSection, path: tuple[str | int, ...], backend: BackendEntry) -> list[Problem]:
    problems: list[Problem] = []

    def refuse(key: str, value: object, remedy: str) -> None:
        problems.append(Problem(path=(*path, *key.split(".")), value=value, remedy=remedy))

    if pool.device not in backend.divides_on and pool.mesh_gpus > 1:
        able = " or ".join(name for name, other in BACKENDS.items() if pool.device in other.divides_on)
        remedy = f"backend {backend.name} divides no model on {pool.device}; set 1, or backend: {able}"
        refuse("mesh_gpus", pool.mesh_gpus, remedy)
    if backend.name != "sglang" and pool.sglang != SglangSection():
        refuse("sglang", None, "this pool's backend is native; set backend: sglang or remove it")
    if pool.devices_per_node % pool.mesh_gpus:
        refuse("mesh_gpus", pool.mesh_gpus, f"must divide gpus_per_node ({pool.gpus_per_node})")
    if pool.device == "cpu" and pool.cores is not None and pool.cores % pool.mesh_gpus:
        refuse("cores", pool.cores, f"each of mesh_gpus ({pool.mesh_gpus}) ranks has as many; set a multiple of it")
    problems += scaling_problems(pool.nodes, pool.scaling, path)
    if pool.device == "cpu":
        if pool.gpu_type is not None:
            refuse("gpu_type", pool.gpu_type, "a cpu pool has no GPUs; remove it")
        if pool.gpus_per_node != 1:
            refuse("gpus_per_node", pool.gpus_per_node, "a cpu pool has one device per node; remove it")
    elif pool.gpu_type is not None and (unknown := unknown_device(pool.gpu_type)):
        refuse("gpu_type", pool.gpu_type, unknown)
    if pool.device != "cpu" and pool.cores is not None:
        refuse("cores", pool.cores, "only for cpu pools; remove it")
    too_much = without_weights(pool.kv_memory or 0, pool.device_memory, pool.gpu_type, pool.mesh_gpus)
    if pool.kv_memory is not None and too_much:
        refuse("kv_memory", pool.kv_memory.human_readable(), too_much)
    return problems
