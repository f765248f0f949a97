"""A rank that follows: does what the leading rank tells it, each lane's work on that lane."""

import logging
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from typing import Protocol, runtime_checkable

import numpy as np

from pdmux_actor.errors import HostMemoryShort, ModelLoadError
from pdmux_actor.executor.base import HostingExecutor
from pdmux_actor.executor.ranks.device_frames import BucketInputs, DecodePass, DevicePass
from pdmux_actor.executor.ranks.rank_frames import (
    AttachPart,
    DetachPart,
    DropBatch,
    ForgetPart,
    ForwardPass,
    FromRank,
    HeadPass,
    LanePass,
    LoadAdapterPart,
    LoadPart,
    PartCall,
    PartDone,
    PartFailed,
    ResizePart,
    SleepPart,
    ToRank,
    WakePart,
)
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.launch import PREFILL_LANE, Lane

_LOG = logging.getLogger(__name__)


@runtime_checkable
class FollowsPasses(Protocol):
    def do(self, told: LanePass) -> None:
        """Does a pass, on the lane's thread or stream."""
        ...

    def drop_prefill(self, batch_id: int) -> None: ...


class FollowingExecutor(HostingExecutor, Protocol):
    """Its runners follow passes."""

    def run(self, job: Callable[[], None], lane: Lane, first_core: int, num_cores: int, /) -> None:
        """Does a job behind what the lane does, on so many of its cores or SMs. `job` must not raise."""
        ...

    def run_in_place(self, job: Callable[[], None], lane: Lane, /) -> None:
        """Does it behind what the lane does."""
        ...

    def runner(self, number: int) -> object:
        """Returns what does the passes of a lane, by its number."""
        ...


class FollowingRank:
    """`answer` gets the answers to calls, one each. `on_failure` is told of what the leader cannot know of; it shall
    end this rank.
    """

    def __init__(
        self,
        executor: FollowingExecutor,
        *,
        answer: Callable[[FromRank], None],
        on_failure: Callable[[], None],
    ) -> None:
        self._answer = answer
        self._on_failure = on_failure
        self._executor = executor
        self._parts: dict[str, ModelInfo] = {}
        self._calls: SimpleQueue[PartCall] = SimpleQueue()
        self._ended: dict[int, Event] = {}  # the last pass of each lane
        Thread(target=self._work, name="rank-calls", daemon=True).start()

    def take(self, told: ToRank) -> None:
        """Returns soon. What is told of one lane is done in order."""
        match told:
            case ForwardPass() | HeadPass() | DevicePass() | BucketInputs() | DecodePass():
                lane = Lane.PREFILL if told.lane == PREFILL_LANE else Lane.DECODE
                before, self._ended[told.lane] = self._ended.get(told.lane), (ended := Event())
                job = partial(self._pass, told, before, ended)
                self._executor.run(job, lane, told.first_core, told.num_cores)
            case DropBatch(batch_id=batch_id):
                self._executor.run_in_place(partial(self._runner(PREFILL_LANE).drop_prefill, batch_id), Lane.PREFILL)
            case AttachPart(model=model, max_rows=max_rows):
                info = self._parts[model]
                self._executor.attach_model(info, np.zeros((max_rows, info.geometry.blocks_per_row), dtype=np.int64))
            case DetachPart(model=model):
                self._executor.detach_model(model)
                self._parts.pop(model, None)
            case _:
                self._calls.put(told)

    def close(self) -> None:
        self._executor.close()

    def _pass(self, told: LanePass, before: Event | None, ended: Event) -> None:
        try:
            if before is not None:
                # On other cores it is another thread's. The leader's has ended; this one may lag behind its last sum.
                # no deadline: a pass whose sums are complete ends
                before.wait()
            self._runner(told.lane).do(told)
        except Exception:
            _LOG.exception("a pass of model %s failed", told.model)
            self._on_failure()
        ended.set()

    def _runner(self, number: int) -> FollowsPasses:
        runner = self._executor.runner(number)
        assert isinstance(runner, FollowsPasses)
        return runner

    def _work(self) -> None:
        while True:
            # no deadline: nothing to load or wake
            call = self._calls.get()
            try:
                self._answer(PartDone(self._do(call)))
            except ModelLoadError as error:
                self._answer(PartFailed(type(error).__name__, error.reason, error.remedy))
            except HostMemoryShort as error:
                self._answer(PartFailed(type(error).__name__, str(error), ""))
            except Exception as error:
                _LOG.exception("a rank cannot do %s", call)
                reason = f"{type(error).__name__}: {error}"
                self._answer(PartFailed(type(error).__name__, reason, "the unit's log has the traceback"))

    def _do(self, call: PartCall) -> int:
        match call:
            case LoadPart(source=source):
                self._parts[source.model] = self._executor.load_model(source)
            case LoadAdapterPart(model, base, source, revision):
                self._executor.load_adapter(model, base, source, revision=revision)
            case WakePart(model=model):
                self._parts[model] = self._executor.wake_model(model)
            case SleepPart(model, most_bytes):
                return self._executor.sleep_model(model, most_bytes)
            case ForgetPart(model=model):
                self._executor.forget_sleeper(model)
            case ResizePart(total_blocks=total_blocks):
                return self._executor.resize_pool(total_blocks)
        return 0
