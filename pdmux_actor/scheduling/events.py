"""Defines the events that reach the scheduler from outside, in the order of arrival."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.kv.prefix_kv import KeptRows, PrefixRows, PromptStart
from pdmux_actor.messages import GenerateRequest
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.decision import Decision
from pdmux_actor.scheduling.output_constraint import OutputConstraint


@dataclass(frozen=True, slots=True)
class Arrival:
    """`constraint` is of a request with `structured_output`."""

    request: GenerateRequest
    constraint: OutputConstraint | None = None


@dataclass(frozen=True, slots=True)
class Abort:
    """The request's last event will be ABORT, unless it has finished already."""

    request_id: str


@dataclass(frozen=True, slots=True)
class AttachModel:
    """The executor holds the model's weights; requests for it are welcome once `on_attached` is called. `on_ready` is,
    when it is as fast as it will be, or has gone. Until then `on_warming` is told how many of its graphs are captured,
    and of how many. `on_failed` is told that there is no room for it, and has it removed. On the engine thread: they
    must not block.
    """

    info: ModelInfo
    quota_blocks: int
    on_ready: Callable[[], None] | None = None
    on_warming: Callable[[int, int], None] | None = None
    on_attached: Callable[[], None] | None = None
    on_failed: Callable[[ModelLoadError], None] | None = None


@dataclass(frozen=True, slots=True)
class AttachAdapter:
    """The executor holds an adapter of `base`, which is attached; requests for it are welcome from now on."""

    model: str
    base: str
    quota_blocks: int


@dataclass(frozen=True, slots=True)
class RemoveModel:
    """Ends the requests of a model, or of an adapter, with an error and frees its blocks; the weights go when its
    launches have ended. A model's adapters have left before it.
    """

    model: str


@dataclass(frozen=True, slots=True)
class SetQuotas:
    """New token-block quotas; models not named keep theirs."""

    quota_blocks: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ResizePool:
    """The pool has so many blocks from now on. No model is attached."""

    total_blocks: int


@dataclass(frozen=True, slots=True)
class SetPolicy:
    policy: str


@dataclass(frozen=True, slots=True)
class ReadDecisions:
    """`answer` gets the engine's time and the newest `last` decisions, on the engine thread: it must not block."""

    last: int
    answer: Callable[[float, Sequence[Decision]], None]


@dataclass(frozen=True, slots=True)
class ReadPrefix:
    """`answer` gets rows of a prompt's KV from `first_row` on, as far as they are cached and `most_bytes` hold them;
    None where none is. On the engine thread: it must not block.
    """

    prompt: PromptStart
    first_row: int
    most_bytes: int
    answer: Callable[[PrefixRows | None], None]


@dataclass(frozen=True, slots=True)
class KeepPrefix:
    """Takes another engine's KV of a prompt into the prefix cache, as far as there is room; with `rows` None nothing.
    `answer` gets what is there then, on the engine thread: it must not block.
    """

    prompt: PromptStart
    rows: PrefixRows | None
    answer: Callable[[KeptRows], None]


@dataclass(frozen=True, slots=True)
class Stop:
    """The engine loop returns after this turn. What still runs is not answered: drain first."""


Event = (
    Arrival
    | Abort
    | AttachModel
    | AttachAdapter
    | RemoveModel
    | SetQuotas
    | ResizePool
    | SetPolicy
    | ReadDecisions
    | ReadPrefix
    | KeepPrefix
    | Stop
)
