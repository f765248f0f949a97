"""An SGLang engine whose model has left: its process stays, its device memory goes, its weights wait in host memory.

A lease that brings the same model back finds it in a second, where a start takes tens of them.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from pdmux_actor.backends.sglang.launch import Launch
from pdmux_actor.backends.sglang.link import PluginLoad
from pdmux_actor.lease import SleepingWeights
from pdmux_actor.models.checkpoint import files_of
from pdmux_actor.serving.commands import LoadModelCommand

logger = logging.getLogger(__name__)

_IDLE_REPORTS = 2  # one may have been on its way before the last request came
_IDLE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleeper:
    """`files` are those that the weights came from, with their times: they may have changed meanwhile. `wake_s`: what
    its return should take.
    """

    command: LoadModelCommand
    launch: Launch
    files: frozenset[tuple[str, int]]
    wake_s: float

    @property
    def told(self) -> SleepingWeights:
        return SleepingWeights(
            model=self.command.model, host_bytes=self.launch.info.spec.weight_bytes, wake_s=self.wake_s
        )

    def is_asked_for(self, command: LoadModelCommand) -> bool:
        mine, its = self.command, command
        same = (mine.model, mine.source, mine.revision, mine.dtype, mine.max_model_len) == (
            its.model,
            its.source,
            its.revision,
            its.dtype,
            its.max_model_len,
        )
        return same and bool(self.files) and self.files == checkpoint_files(self.launch)


def checkpoint_files(launch: Launch) -> frozenset[tuple[str, int]]:
    return files_of(launch.arguments["model_path"])


class IdleWatch:
    """Tells from the plugin's reports when SGLang has let go of its last request."""

    def __init__(self) -> None:
        self._idle_reports = 0
        self._idle = asyncio.Event()

    def note(self, load: PluginLoad) -> None:
        self._idle_reports = 0 if load.running or load.waiting else self._idle_reports + 1
        if self._idle_reports >= _IDLE_REPORTS:
            self._idle.set()

    async def wait(self) -> bool:
        """Waits from now on; False: it did not come in time."""
        self._idle_reports = 0
        self._idle.clear()
        try:
            async with asyncio.timeout(_IDLE_TIMEOUT_S):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


async def put_to_sleep(engine: Any, watch: IdleWatch) -> bool:
    """False: it has requests that do not end; it must be stopped instead."""
    from sglang.srt.managers.io_struct import ReleaseMemoryOccupationReqInput

    engine.tokenizer_manager.abort_request(abort_all=True)
    # no deadline: it has one of its own
    if not await watch.wait():
        logger.warning("SGLang does not become idle: it is stopped instead of put to sleep")
        return False
    await engine.tokenizer_manager.release_memory_occupation(ReleaseMemoryOccupationReqInput())
    return True


async def wake(engine: Any) -> None:
    from sglang.srt.managers.io_struct import ResumeMemoryOccupationReqInput

    await engine.tokenizer_manager.resume_memory_occupation(ResumeMemoryOccupationReqInput())
