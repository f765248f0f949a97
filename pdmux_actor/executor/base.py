"""The seam between deciding and doing. The executor owns time, memory and the lanes."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pdmux_actor.kv.prefix_kv import RowLayout
from pdmux_actor.model_info import ModelInfo, ModelSource
from pdmux_actor.models.load_progress import OnProgress, ignore_progress
from pdmux_actor.scheduling.launch import Launch, LaunchCompletion
from profiler.specs import DeviceSpec


class Executor(Protocol):
    """Lanes are FIFO with one launch in flight each (the scheduler holds to it), and where its settings say that the
    executor takes one, a decode step `ahead` behind it.

    Only the engine thread calls; `wake` and `load_model` may be called from any thread.
    """

    device: DeviceSpec
    total_blocks: int
    block_bytes: int
    unpartitioned_reason: str | None
    """Why lanes compete for the whole device although it could be partitioned."""

    def now(self) -> float:
        """Seconds; monotonic or virtual."""
        ...

    def load_model(self, source: ModelSource, *, on_progress: OnProgress = ignore_progress) -> ModelInfo:
        """Slow: reads weights. The model can be launched after `attach_model`.
        `on_progress` may be told of bytes that are read, on any thread.

        Raises:
            ModelLoadError: the checkpoint is missing, broken or unsupported; the message names the remedy.
        """
        ...

    def load_adapter(self, model: str, base: str, source: str, *, revision: str | None) -> None:
        """Reads an adapter of `base`, which is loaded: its requests are in launches of `base` from now on.

        Raises:
            ModelLoadError: as `load_model`, or the adapter is of another base.
        """
        ...

    def attach_model(self, info: ModelInfo, row_table: npt.NDArray[np.int64]) -> None:
        """Gives the executor the row table `[max_rows, blocks_per_row]` that the block pool fills in place.

        Raises:
            ModelTooLarge: the device has no room for what launches of it need; its weights have gone, too.
        """
        ...

    def detach_model(self, model: str) -> None:
        """Frees the weights of a model or an adapter. No launch with it is in flight."""
        ...

    def submit(self, launch: Launch) -> None:
        """Returns at once. A failure of the launch comes back as a completion with `error`."""
        ...

    def wait(self, deadline_s: float | None) -> Sequence[LaunchCompletion]:
        """Waits for at least one completion, or returns none at `deadline_s` or on `wake`. With None it waits without
        limit.
        """
        ...

    def wake(self) -> None:
        """Makes a running or the next `wait` return."""
        ...

    def close(self) -> None:
        """Stops the lanes after their launches in flight."""
        ...


class HostingExecutor(Executor, Protocol):
    """Its models can sleep: their weights wait in host memory, laid out so that the way back is a copy. These calls and
    `load_model` come from one thread.
    """

    memory_is_host: bool
    """Models that sleep lie in the same memory as those that serve."""

    def resize_pool(self, total_blocks: int) -> int:
        """Gives the KV pool another size, while no model is attached or loaded. Returns how many blocks it has: fewer,
        where memory does not hold all.
        """
        ...

    def sleep_model(self, model: str, most_bytes: int) -> int:
        """Copies the weights of a loaded model, which may run meanwhile; `detach_model` then frees those on the
        device. Returns the bytes of host memory that they take.

        Raises:
            HostMemoryShort: `most_bytes`, or what the machine has left, do not hold them.
        """
        ...

    def wake_model(self, model: str) -> ModelInfo:
        """Attaches a sleeping model as `load_model` does; it sleeps no more.

        Raises:
            ModelTooLarge: the device has no room for it now; it sleeps on.
        """
        ...

    def forget_sleeper(self, model: str) -> None:
        """Frees its host memory."""
        ...


@runtime_checkable
class WarmingExecutor(Protocol):
    """An executor that goes on preparing a model once it is attached, while it has nothing else to do."""

    def is_warming(self, model: str) -> bool:
        """Returns whether launches of an attached model will be faster in a few seconds, if none comes before."""
        ...

    def captures_left(self, model: str) -> int:
        """Returns how many graphs it waits for."""
        ...

    def finish_captures(self) -> None:
        """Does now what models that are warming wait for, some ten seconds: for programs that turn no engine's loop."""
        ...


@runtime_checkable
class KvMover(Protocol):
    """An executor whose KV can be copied out of its pool and into it. Rows are those of an attached model's row table,
    and no launch that is in flight writes them. On the engine thread, which the copy keeps.
    """

    def row_layout(self, model: str) -> RowLayout: ...

    def read_rows(self, model: str, rows: Sequence[int]) -> bytes: ...

    def write_rows(self, model: str, rows: Sequence[int], data: bytes) -> None:
        """`data` is what `read_rows` gave of as many rows of the same layout."""
        ...
