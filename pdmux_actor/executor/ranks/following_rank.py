"""A rank that follows: does what the leading rank tells it, each lane's work on that lane."""

import logging
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread

import numpy as np

from pdmux_actor.errors import HostMemoryShort, ModelLoadError
from pdmux_actor.executor.ranks.following_runner import FollowingRunner
from pdmux_actor.executor.ranks.lane_group import LaneGroup
from pdmux_actor.executor.ranks.rank_frames import (
    AttachPart,
    DetachPart,
    DropBatch,
    ForgetPart,
    ForwardPass,
    FromRank,
    HeadPass,
    LoadPart,
    PartCall,
    PartDone,
    PartFailed,
    RankSettings,
    ResizePart,
    SleepPart,
    ToRank,
    WakePart,
)
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.models.rank_share import RankShare
from pdmux_actor.scheduling.launch import PREFILL_LANE, Lane

_LOG = logging.getLogger(__name__)


class FollowingRank:
    """`answer` gets the answers to calls, one each. `on_failure` is told of what the leader cannot know of; it shall
    end this rank.
    """

    def __init__(
        self,
        settings: RankSettings,
        groups: tuple[LaneGroup, ...],
        *,
        answer: Callable[[FromRank], None],
        on_failure: Callable[[], None],
    ) -> None:
        self._answer = answer
        self._on_failure = on_failure
        self._executor = TorchCpuExecutor(
            kv_pool_bytes=settings.kv_pool_bytes,
            block_bytes=settings.block_bytes,
            device=settings.device,
            cores=settings.cores,
            share=RankShare(rank=settings.rank, num_ranks=settings.num_ranks),
            make_runner=lambda number, models: FollowingRunner(models, groups[number]),
        )
        self._parts: dict[str, ModelInfo] = {}
        self._calls: SimpleQueue[PartCall] = SimpleQueue()
        Thread(target=self._work, name="rank-calls", daemon=True).start()

    def take(self, told: ToRank) -> None:
        """Returns soon. What is told of one lane is done in order."""
        match told:
            case ForwardPass() | HeadPass():
                lane = Lane.PREFILL if told.lane == PREFILL_LANE else Lane.DECODE
                self._executor.run(partial(self._pass, told), lane, told.first_core, told.num_cores)
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

    def _pass(self, told: ForwardPass | HeadPass) -> None:
        try:
            runner = self._runner(told.lane)
            if isinstance(told, ForwardPass):
                runner.forward(told)
            else:
                runner.head(told)
        except Exception:
            _LOG.exception("a pass of model %s failed", told.model)
            self._on_failure()

    def _runner(self, number: int) -> FollowingRunner:
        runner = self._executor.runner(number)
        assert isinstance(runner, FollowingRunner)
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
            case LoadPart(model, source, revision, dtype, max_model_len):
                self._parts[model] = self._executor.load_model(
                    model, source, revision=revision, dtype=dtype, max_model_len=max_model_len
                )
            case WakePart(model=model):
                self._parts[model] = self._executor.wake_model(model)
            case SleepPart(model, most_bytes):
                return self._executor.sleep_model(model, most_bytes)
            case ForgetPart(model=model):
                self._executor.forget_sleeper(model)
            case ResizePart(total_blocks=total_blocks):
                return self._executor.resize_pool(total_blocks)
        return 0
