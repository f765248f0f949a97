"""Tells when an executor has let go of a model."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pdmux_actor.executor.base import Executor
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.launch import Completion, Launch


class WatchedExecutor:
    """An executor that reports each `detach_model` once its memory is free."""

    def __init__(self, executor: Executor, on_detached: Callable[[str], None]) -> None:
        self._executor = executor
        self._on_detached = on_detached
        self.device = executor.device
        self.total_blocks = executor.total_blocks
        self.block_bytes = executor.block_bytes
        self.unpartitioned_reason = executor.unpartitioned_reason
        # Called several times a step: bound here, so that watching costs nothing.
        self.now = executor.now
        self.wake = executor.wake
        self.close = executor.close

    def load_model(
        self, model: str, source: str, *, revision: str | None, dtype: str | None, max_model_len: int | None
    ) -> ModelInfo:
        return self._executor.load_model(model, source, revision=revision, dtype=dtype, max_model_len=max_model_len)

    def attach_model(self, info: ModelInfo, row_table: npt.NDArray[np.int64]) -> None:
        self._executor.attach_model(info, row_table)

    def detach_model(self, model: str) -> None:
        self._executor.detach_model(model)
        self._on_detached(model)

    def submit(self, launch: Launch) -> None:
        self._executor.submit(launch)

    def wait(self, deadline_s: float | None) -> Sequence[Completion]:
        return self._executor.wait(deadline_s)
