"""Defines what an actor needs of an engine, whatever runs inside."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pdmux_actor.kv.prefix_kv import KeptRows, PrefixRows, PromptStart
from pdmux_actor.lease import LoadProgress, ModelAssignment, SleepingWeights
from pdmux_actor.messages import GenerateRequest, LoadReport, TokenEvent
from pdmux_actor.scheduling.decision import LogExcerpt
from placement.launch_limits import DEFAULT_LIMITS, LaunchLimits
from profiler.specs import DeviceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCapacity:
    """`max_models` None: as many as fit. `constrains`: outputs can be made to follow a JSON schema.
    `host_memory_bytes` are there for the weights of models that sleep. `launch_limits` are those of its scheduler.
    `measured_device` is told of a device that no table has.
    `sizes_pool`: there is no pool until `resize_pool`.
    """

    device: str
    memory_bytes: int
    block_bytes: int
    total_blocks: int
    max_models: int | None = None
    constrains: bool = False
    host_memory_bytes: int = 0
    measured_device: DeviceSpec | None = None
    launch_limits: LaunchLimits = DEFAULT_LIMITS
    sizes_pool: bool = False


class Engine(Protocol):
    """Asyncio side of an engine. Every submitted request ends with exactly one event whose `finish` is set,
    unless the engine dies: then `events` raises EngineDied and the caller owes the answers.
    """

    async def start(self) -> EngineCapacity: ...

    async def resize_pool(self, total_blocks: int) -> int:
        """Returns how many blocks the pool has: what it had if it holds a model, fewer if memory does not hold all."""
        ...

    async def add_model(self, assignment: ModelAssignment) -> int:
        """Returns the model's maximum length in tokens. One that is asleep wakes.

        Raises:
            ModelLoadError: the checkpoint cannot be served.
        """
        ...

    def load_progress(self, model: str) -> LoadProgress | None:
        """Returns how far reading its weights is; None where nothing is being read, or the engine does not tell."""
        ...

    async def remove_model(self, model: str, *, sleep: bool = False) -> None:
        """Aborts what the model still runs and frees its memory. With `sleep` its weights go to host memory, if that
        holds them: `asleep` tells. A model that is asleep is forgotten.
        """
        ...

    def asleep(self) -> Mapping[str, SleepingWeights]:
        """Models whose weights are in host memory."""
        ...

    async def set_quotas(self, quota_blocks: Mapping[str, int]) -> Mapping[str, int]:
        """Returns the maximum lengths in tokens that the named models have now, without those the engine lacks."""
        ...

    async def set_policy(self, policy: str) -> None: ...

    def submit(self, request: GenerateRequest) -> None: ...

    def abort(self, request_id: str) -> None: ...

    def events(self) -> AsyncIterator[Sequence[TokenEvent]]:
        """One item per engine step. Iterate once.

        Raises:
            EngineDied: the engine process ended.
        """
        ...

    def load_report(self) -> LoadReport | None:
        """The newest report, a fraction of a second old; None before the first."""
        ...

    async def decisions(self, last: int, *, request_ids: tuple[str, ...] = (), within_s: float = 0.0) -> LogExcerpt:
        """The scheduler's newest decisions, at most `last`; of a large batch, not all request ids. With `request_ids`,
        those among them that worked on one of these in the last `within_s` seconds.

        Raises:
            EngineDied: the engine process ended.
        """
        ...

    async def read_prefix(self, prompt: PromptStart, first_row: int) -> PrefixRows | None:
        """Returns cached KV of a prompt from `first_row` on, as much as one message should have; None where there is
        none.

        Raises:
            EngineDied: the engine process ended.
        """
        ...

    async def keep_prefix(self, prompt: PromptStart, rows: PrefixRows | None) -> KeptRows:
        """Takes KV that another engine gave into the prefix cache, as far as there is room, and returns what is there
        of the prompt then; with None what is there now. Rows of another layout are not taken.

        Raises:
            EngineDied: the engine process ended.
        """
        ...

    def is_alive(self) -> bool: ...

    def is_stalled(self) -> bool:
        """It makes no progress: it may come to itself again, or is soon given up and dies."""
        ...

    async def stop(self) -> None: ...
