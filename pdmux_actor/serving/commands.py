"""Defines the messages of an actor and its engine process: length-prefixed msgpack over a socket pair, no pickle."""

import msgspec

from pdmux_actor.backends.registry import BY_KIND
from pdmux_actor.backends.sglang.options import SglangOptions
from pdmux_actor.kv.prefix_kv import PrefixRows, PromptStart
from pdmux_actor.lease import SleepingWeights
from pdmux_actor.messages import IDLE_REPORT_EVERY_S, GenerateRequest, LoadReport, TokenEvent
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.probe import LaunchShape
from profiler.specs import DeviceSpec


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds what shapes an engine process; nothing here changes while it runs, except the policy.

    `kind` is one of those that backends declare (backends/registry.py). `device_type` names a device the profiler
    knows, for "simulated"; None simulates a laptop's CPU. `num_cores` None means all. `dtype` None means each
    checkpoint's own. `device_memory_bytes` is what the planner may fill with weights and KV; None means what the
    device has. `profile` is a file that `muxfleet profile` wrote: policies then start from what was measured, and a
    simulated engine takes the times of the machine it was measured on. `guard` is a file in which it keeps what its
    contention guard learned. `num_gpus` are one tensor-parallel group; `sglang` is for the kinds that run SGLang.
    `host_memory_bytes` are for the weights of models that sleep; None means this unit's share of the node's memory,
    which it has with `units_per_node` others like it. `kv_pool_bytes` None: no pool until ResizePoolCommand. An engine
    without work reports every `idle_report_s`; whoever watches it must not take that for silence.
    """

    kind: str
    kv_pool_bytes: int | None
    block_bytes: int = 16 * 1024
    dtype: str | None = None
    num_cores: int | None = None
    device_type: str | None = None
    device_memory_bytes: int | None = None
    profile: str | None = None
    guard: str | None = None
    policy: str = "mux"
    scheduler: SchedulerSettings = SchedulerSettings()
    num_gpus: int = 1
    sglang: SglangOptions = SglangOptions()
    host_memory_bytes: int | None = 0
    units_per_node: int = 1
    idle_report_s: float = IDLE_REPORT_EVERY_S

    def __post_init__(self) -> None:
        if self.kind not in BY_KIND:
            raise ValueError(f"{self.kind!r} is none of {', '.join(BY_KIND)}")


class ResizePoolCommand(msgspec.Struct, frozen=True, tag="resize_pool"):
    """Answered with how many blocks there are, behind loads and removals that were asked for before. A pool that a
    model is in keeps its size.
    """

    call: int
    total_blocks: int


class LoadModelCommand(msgspec.Struct, frozen=True, tag="load_model"):
    """Answered with the tokens of its longest sequence, or by CallFailed. A model that sleeps is woken, if these are
    its weights and their files have not changed; else it is read anew. With `base` it is an adapter of that model,
    which was loaded before.
    """

    call: int
    model: str
    source: str
    quota_blocks: int
    revision: str | None = None
    dtype: str | None = None
    weights: str | None = None
    max_model_len: int | None = None
    base: str | None = None


class RemoveModelCommand(msgspec.Struct, frozen=True, tag="remove_model"):
    """Answered with None when the weights are gone: with `sleep` into host memory if that holds them, else for
    good. Of a model that sleeps, its host memory goes. A model's adapters go with it.
    """

    call: int
    model: str
    sleep: bool = False


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    request: GenerateRequest


class AbortRequest(msgspec.Struct, frozen=True, tag="abort"):
    request_id: str


class SetQuotasCommand(msgspec.Struct, frozen=True, tag="quotas"):
    """Answered with the tokens of the longest sequence, by model."""

    call: int
    quota_blocks: dict[str, int]


class ChangePolicy(msgspec.Struct, frozen=True, tag="policy"):
    policy: str


class ReadDecisionsCommand(msgspec.Struct, frozen=True, tag="read_decisions"):
    """Answered with a LogExcerpt of the newest `last` decisions; where `request_ids` are named, with those among them
    of the last `within_s` seconds that worked on one of these, and no other ids in them.
    """

    call: int
    last: int
    request_ids: tuple[str, ...] = ()
    within_s: float = 0.0


class TimeLaunch(msgspec.Struct, frozen=True, tag="time_launch"):
    """Asks for the time of a launch, of an engine that serves nobody and is of a kind that runs SGLang. Answered with
    its seconds, or by CallFailed.
    """

    call: int
    launch: LaunchShape
    beside: LaunchShape | None


class ReadPrefixCommand(msgspec.Struct, frozen=True, tag="read_prefix"):
    """Answered with PrefixRows of a prompt from `first_row` on, as many as one message should have. None: no such row
    is cached, or this engine gives none away.
    """

    call: int
    prompt: PromptStart
    first_row: int


class KeepPrefixCommand(msgspec.Struct, frozen=True, tag="keep_prefix"):
    """Answered with KeptRows when `rows` are in the prefix cache, as far as there is room for them. None asks what is
    there.
    """

    call: int
    prompt: PromptStart
    rows: PrefixRows | None


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    pass


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The first message of an engine process."""

    device: str
    memory_bytes: int
    block_bytes: int
    total_blocks: int
    max_models: int | None = None
    constrains: bool = False
    host_memory_bytes: int = 0
    measured_device: DeviceSpec | None = None
    sizes_pool: bool = False


class WeightsRead(msgspec.Struct, frozen=True, tag="weights_read"):
    """Told a few times a second while a model's weights are read."""

    model: str
    done_bytes: int
    total_bytes: int


class GraphsCaptured(msgspec.Struct, frozen=True, tag="graphs_captured"):
    """Told about once a second while a model whose weights were read is captured."""

    model: str
    done_graphs: int
    total_graphs: int


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """`value` is of the type that the command says."""

    call: int
    value: msgspec.Raw


class CallFailed(msgspec.Struct, frozen=True, tag="call_failed"):
    call: int
    reason: str
    remedy: str = ""


def answered(call: int, value: object) -> Answered:
    return Answered(call, msgspec.Raw(msgspec.msgpack.encode(value)))


class Asleep(msgspec.Struct, frozen=True, tag="asleep"):
    """All models that sleep from now on. Told before the answer to what changed it."""

    models: tuple[SleepingWeights, ...]


class Tokens(msgspec.Struct, frozen=True, tag="tokens"):
    """All that one engine step produced."""

    events: tuple[TokenEvent, ...]


class LoadReported(msgspec.Struct, frozen=True, tag="load"):
    report: LoadReport


Call = (
    ResizePoolCommand
    | LoadModelCommand
    | RemoveModelCommand
    | SetQuotasCommand
    | ReadDecisionsCommand
    | ReadPrefixCommand
    | KeepPrefixCommand
    | TimeLaunch
)
"""Commands that are answered."""
Command = Call | Submit | AbortRequest | ChangePolicy | Shutdown
Answer = Answered | CallFailed
Notice = Answer | Started | WeightsRead | GraphsCaptured | Asleep | Tokens | LoadReported
