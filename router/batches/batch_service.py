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
from router.batches.object_store import ObjectStore, StoreUnusable
from router.errors import BatchesUnavailable

logger = logging.getLogger(__name__)

_RETRY_S = 30
P = ParamSpec("P")
T = TypeVar("T")


class BatchService:
    """`settings` None: nothing is kept here. `asks` answers lines, by endpoint."""

    def __init__(self, settings: BatchSettings | None, asks: Mapping[str, AskLine]) -> None:
        self.settings = settings or BatchSettings(url="")
        self.endpoints = sorted(asks)
        self._is_on = settings is not None
        self._asks = asks
        self._reason = "the gateway starts" if settings is not None else "this gateway has no place for them"
        self._files: KeptFiles | None = None
        self._batches: KeptBatches | None = None
        self._worker: BatchWorker | None = None

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
        """Makes a call to the store in a thread. Raises BatchesUnavailable where the store fails."""
        try:
            return await asyncio.to_thread(call, *args, **kwargs)
        except OSError as error:
            raise BatchesUnavailable(reason=str(error), retry_after_s=_RETRY_S) from error

    async def run(self) -> None:
        """Opens the store, which may have to wait for somebody who mends it, and works. Cancel it."""
        if not self._is_on:
            return
        while True:
            try:
                store = await asyncio.to_thread(ObjectStore, self.settings.url)
                break
            except StoreUnusable as error:
                self._reason = str(error)
                logger.error("files and batches cannot be kept", extra={"reason": self._reason})
                await asyncio.sleep(_RETRY_S)
        self._files, self._batches = KeptFiles(store), KeptBatches(store)
        self._worker = BatchWorker(self._batches, self._files, self.settings, self._asks)
        await self._worker.work()
