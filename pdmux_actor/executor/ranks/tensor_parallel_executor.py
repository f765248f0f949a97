"""The executor of a tensor-parallel unit: this process's rank leads, the others do as it tells them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pdmux_actor.errors import HostMemoryShort, ModelLoadError, ModelTooLarge
from pdmux_actor.executor.base import HostingExecutor
from pdmux_actor.executor.ranks.rank_frames import (
    AttachPart,
    DetachPart,
    ForgetPart,
    FromRank,
    LoadAdapterPart,
    LoadPart,
    PartDone,
    PartFailed,
    RankLink,
    ResizePart,
    SleepPart,
    WakePart,
)
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.model_info import ModelInfo, ModelSource
from pdmux_actor.models.load_progress import OnProgress, ignore_progress
from pdmux_actor.scheduling.launch import Launch, LaunchCompletion
from profiler.specs import AUTO_DTYPE, DeviceSpec

Result = TypeVar("Result")


class TensorParallelExecutor:
    """Implements executor.base.HostingExecutor over the leading rank's own executor, `own`.

    Blocks are counted as plans do: a row has layers x KV heads of them, or layers x ranks where there are more ranks
    than KV heads. Every rank keeps its heads' blocks of a row at the same places of its pool, so one table of
    `num_ranks` times fewer columns says where they are on all of them.
    """

    def __init__(self, own: HostingExecutor, link: RankLink, *, default_dtype: str | None = None) -> None:
        self._own = own
        self._link = link
        self._default_dtype = default_dtype
        self.device: DeviceSpec = own.device
        self.block_bytes: int = own.block_bytes
        self.total_blocks = own.total_blocks * link.num_ranks
        self.unpartitioned_reason = own.unpartitioned_reason
        self.memory_is_host = own.memory_is_host
        self._parts: dict[str, ModelInfo] = {}  # what this rank has of each model

    @property
    def num_ranks(self) -> int:
        return self._link.num_ranks

    def now(self) -> float:
        return self._own.now()

    def resize_pool(self, total_blocks: int) -> int:
        """All ranks have pools of one size: the least that any of them has room for."""
        size = total_blocks // self.num_ranks
        while True:
            answers, own_blocks = self._link.call(ResizePart(size), partial(self._own.resize_pool, size))
            least = min([own_blocks, *(_done(answer).value for answer in answers)])
            if least == size:
                self.total_blocks = size * self.num_ranks
                return self.total_blocks
            size = least

    def load_model(self, source: ModelSource, *, on_progress: OnProgress = ignore_progress) -> ModelInfo:
        source = source.or_dtype(self._default_dtype)
        load_own = partial(self._own.load_model, source, on_progress=on_progress)
        if source.dtype != AUTO_DTYPE:
            return self._attachable(source.model, LoadPart(source), load_own)
        part = load_own()  # what is fastest is measured once, for all
        return self._attachable(source.model, LoadPart(replace(source, dtype=part.spec.dtype)), lambda: part)

    def load_adapter(self, model: str, base: str, source: str, *, revision: str | None) -> None:
        if not self.memory_is_host:
            raise ModelLoadError(
                model=model,
                reason=f"its base {base!r} is on {self.num_ranks} GPUs, and adapters are not divided there",
                remedy="place the base on a pool with mesh_gpus: 1, or serve the adapter merged into its base",
            )
        own = partial(self._own.load_adapter, model, base, source, revision=revision)
        answers, failure = self._link.call(LoadAdapterPart(model, base, source, revision), partial(_tried, own))
        failures = [_failure(model, answer) for answer in answers if isinstance(answer, PartFailed)]
        if failure is not None or failures:
            self.detach_model(model)
            raise failures[0] if failure is None else failure

    def attach_model(self, info: ModelInfo, row_table: npt.NDArray[np.int64]) -> None:
        self._link.tell(AttachPart(info.model, len(row_table)))
        self._own.attach_model(self._parts[info.model], row_table)

    def detach_model(self, model: str) -> None:
        self._link.tell(DetachPart(model))
        self._own.detach_model(model)
        self._parts.pop(model, None)

    def sleep_model(self, model: str, most_bytes: int) -> int:
        each_bytes = most_bytes // self.num_ranks
        told = SleepPart(model, each_bytes)
        answers, own = self._link.call(told, partial(_tried, self._own.sleep_model, model, each_bytes))
        if isinstance(own, int) and all(isinstance(answer, PartDone) for answer in answers):
            return own + sum(_done(answer).value for answer in answers)
        self._forget(model)
        if isinstance(own, Exception):
            raise own
        raise HostMemoryShort(model=model, needed_bytes=own * self.num_ranks, admitted_bytes=most_bytes)

    def wake_model(self, model: str) -> ModelInfo:
        return self._attachable(model, WakePart(model), partial(self._own.wake_model, model))

    def forget_sleeper(self, model: str) -> None:
        self._forget(model)

    def submit(self, launch: Launch) -> None:
        self._own.submit(launch)

    def wait(self, deadline_s: float | None) -> Sequence[LaunchCompletion]:
        return self._own.wait(deadline_s)

    def wake(self) -> None:
        self._own.wake()

    def close(self) -> None:
        self._own.close()
        self._link.close()

    def _attachable(self, model: str, told: LoadPart | WakePart, bring: Callable[[], ModelInfo]) -> ModelInfo:
        """A model that all ranks have, or none. Raises ModelLoadError."""
        answers, part = self._link.call(told, partial(_tried, bring))
        failures = [_failure(model, answer) for answer in answers if isinstance(answer, PartFailed)]
        if isinstance(part, ModelInfo) and not failures:
            self._parts[model] = part
            return self._whole(part)
        self._link.tell(DetachPart(model))
        self._own.detach_model(model)
        self._forget(model)
        raise failures[0] if isinstance(part, ModelInfo) else part

    def _whole(self, part: ModelInfo) -> ModelInfo:
        spec = part.whole
        assert spec is not None, "a rank has a part of a model"
        blocks_per_row = spec.num_layers * max(spec.num_kv_heads, self.num_ranks)
        geometry = KvGeometry(blocks_per_row=blocks_per_row, tokens_per_row=part.geometry.tokens_per_row)
        return replace(part, spec=spec, geometry=geometry, whole=None)

    def _forget(self, model: str) -> None:
        self._link.call(ForgetPart(model), partial(_tried, self._own.forget_sleeper, model))


def _tried(work: Callable[..., Result], *arguments: object) -> "Result | Exception":
    """What it returns or raises: the other ranks are heard first."""
    try:
        return work(*arguments)
    except Exception as error:
        return error


def _done(answer: FromRank) -> PartDone:
    assert isinstance(answer, PartDone), f"a rank failed at what cannot fail: {answer}"
    return answer


def _failure(model: str, answer: PartFailed) -> ModelLoadError:
    kind = ModelTooLarge if answer.kind == ModelTooLarge.__name__ else ModelLoadError
    return kind(model=model, reason=answer.reason, remedy=answer.remedy)
