"""Files and batches of one gateway replica: their store, once it can be opened, and the worker on it."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from router.batches.batch_settings import BatchSettings
from router.batches.batch_worker import BatchWorker
from router.batches.kept_batches import KeptBatches
from router.batches.kept_files import KeptFiles
from router.batches.line_runner import AskLine
from router.batches.object_store import ObjectStore, StoreThreads, StoreUnusable
from router.errors import BatchesUnavailable
from router.telemetry.metrics import BatchMetrics

logger = logging.getLogger(__name__)

_RETRY_S = 30
P = ParamSpec("P")
T = TypeVar("T")


class BatchService:
    """`settings` None: nothing is kept here. `asks` answers lines, by endpoint."""

    def __init__(self, settings: BatchSettings | None, asks: Mapping[str, AskLine], metrics: BatchMetrics) -> None:
        self.settings = settings or BatchSettings(url="")
        self.endpoints = sorted(asks)
        self._is_on = settings is not None
        self._asks = asks
        self._reason = "the gateway starts" if settings is not None else "this gateway has no place for them"
        self._files: KeptFiles | None = None
        self._batches: KeptBatches | None = None
        self._worker: BatchWorker | None = None
        self._threads = StoreThreads()
        self._metrics = metrics

    @property
    def files(self) -> KeptFiles:
        """Raises BatchesUnavailable."""
        if self._files is None:
            raise BatchesUnavailable(reason=self._reason, retry_after_s=_RETRY_S)
        return self._files

    @property
    def batches(self) -> KeptBatches:
        """Raises BatchesUnavailable."""
        if self._batches is None:
            raise BatchesUnavailable(reason=self._reason, retry_after_s=_RETRY_S)
        return self._batches

    def look(self) -> None:
        """A batch has come."""
        if self._worker is not None:
            self._worker.look()

    async def blocking(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Makes a call to the store in a thread. Raises BatchesUnavailable where the store fails or does not answer."""
        return await self._within(self.settings.answer_timeout_s, call, *args, **kwargs)

    async def copying(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Does the same for a whole file, which takes longer."""
        return await self._within(self.settings.upload_timeout_s, call, *args, **kwargs)

    async def _within(self, timeout_s: float, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._threads.call(call, *args, **kwargs)
        except TimeoutError as error:  # an OSError, too
            reason = f"the store has not answered within {timeout_s:.0f} s"
            raise BatchesUnavailable(reason=reason, retry_after_s=_RETRY_S) from error
        except OSError as error:
            logger.error("the store of files and batches fails", extra={"reason": str(error)})
            reason = error.strerror or type(error).__name__  # where things lie here is for the log only
            raise BatchesUnavailable(reason=reason, retry_after_s=_RETRY_S) from error

    async def run(self) -> None:
        """Opens the store, which may have to wait for somebody who mends it, and works. Cancel it."""
        if not self._is_on:
            return
        try:
            await self._work()
        finally:
            self._threads.close()

    async def _work(self) -> None:
        while True:
            try:
                store = await self._threads.call(ObjectStore, self.settings.url)
                break
            except StoreUnusable as error:
                self._reason = "the gateway's log says why"
                logger.error("files and batches cannot be kept", extra={"reason": str(error)})
                await asyncio.sleep(_RETRY_S)
        self._files, self._batches = KeptFiles(store), KeptBatches(store)
        self._worker = BatchWorker(self._batches, self._files, self.settings, self._asks, self._threads, self._metrics)
        await self._worker.work()
