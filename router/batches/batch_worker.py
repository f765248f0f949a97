"""Finds batches that nobody works on, and works on them. One per gateway replica."""

import asyncio
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress

from router.batches.batch_lease import BatchLease
from router.batches.batch_run import BatchLost, BatchRun
from router.batches.batch_settings import BatchSettings
from router.batches.kept_batches import KeptBatches
from router.batches.kept_files import KeptFiles
from router.batches.line_runner import AskLine
from router.batches.object_store import StoreThreads
from router.telemetry.metrics import BatchMetrics

logger = logging.getLogger(__name__)

_MOST_BATCHES = 8  # at once; the others wait, or are another replica's
_MOST_OWNERS = 64  # of which each has one batch under way, however many the others have


class BatchWorker:
    """`asks` answers lines, by endpoint."""

    def __init__(
        self,
        batches: KeptBatches,
        files: KeptFiles,
        settings: BatchSettings,
        asks: Mapping[str, AskLine],
        threads: StoreThreads,
        metrics: BatchMetrics,
    ) -> None:
        self._batches = batches
        self._files = files
        self._settings = settings
        self._asks = asks
        self._threads = threads
        self._metrics = metrics
        self._holder = uuid.uuid4().hex
        self._places = asyncio.Semaphore(settings.lines_at_once)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._runs: dict[str, BatchRun] = {}
        self._foreign: set[str] = set()  # told of
        self._asked = asyncio.Event()

    def look(self) -> None:
        """A batch has come: it need not wait until the next look."""
        self._asked.set()

    async def work(self) -> None:
        """Returns never; cancel it. What is under way stays open for another replica, or the next start."""
        self._metrics.follow(lambda: len(self._runs), lambda: sum(run.lines_left for run in tuple(self._runs.values())))
        sweeping = asyncio.create_task(self._sweep())
        try:
            while True:
                try:
                    await self._take_open()
                except OSError as error:
                    logger.warning("the batches' store fails", extra={"reason": str(error)})
                except Exception:  # whatever it is, looking must go on
                    logger.exception("looking for batches failed")
                try:
                    async with asyncio.timeout(self._settings.poll_s):
                        await self._asked.wait()
                except TimeoutError:
                    pass
                self._asked.clear()
        finally:
            tasks = [sweeping, *self._running.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take_open(self) -> None:
        for owner, batch_id in oldest_first(await self._threads.call(self._batches.open_batches)):
            has_none = all(run.owner != owner for run in self._runs.values())
            has_room = len(self._running) < (_MOST_OWNERS if has_none else _MOST_BATCHES)
            if has_room and batch_id not in self._running:
                await self._try(owner, batch_id)

    async def _sweep(self) -> None:
        """Takes minutes where thousands of files are behind a URL."""
        while True:
            try:
                await self._threads.call(remove_expired, self._batches, self._files, self._settings.keep_s)
            except Exception:  # the next one may go well
                logger.warning("files that have expired could not be removed", exc_info=True)
            await asyncio.sleep(self._settings.sweep_s)

    async def _try(self, owner: str, batch_id: str) -> None:
        request = await self._threads.call(self._batches.request, owner, batch_id)
        if request is None:
            return await self._threads.call(self._batches.drop_unmade, owner, batch_id)
        ask = self._asks.get(request.endpoint)
        if ask is None:
            if batch_id not in self._foreign:
                self._foreign.add(batch_id)
                logger.warning("a batch cannot be worked on by this version", extra={"batch": batch_id})
            return
        lease_s = self._settings.lease_s
        lease = await self._threads.call(self._batches.take, owner, batch_id, self._holder, lease_s)
        if lease is None:
            return
        run = BatchRun(
            request,
            lease,
            batches=self._batches,
            files=self._files,
            settings=self._settings,
            ask=ask,
            places=self._places,
            threads=self._threads,
            metrics=self._metrics,
        )

        async def to_its_end() -> None:
            told = {"batch": batch_id}
            try:
                status = await run.run()
                logger.info("a batch has ended", extra={**told, "status": status})
            except BatchLost:
                logger.warning("another gateway has taken a batch over", extra=told)
            except asyncio.CancelledError:
                await asyncio.shield(_let_go(run, lease, self._threads))
                raise
            except Exception:
                logger.exception("work on a batch broke off; it is tried again", extra=told)
                with suppress(OSError, BatchLost):
                    await run.flush()
            finally:
                self._running.pop(batch_id, None)
                self._runs.pop(batch_id, None)

        self._runs[batch_id] = run
        self._running[batch_id] = asyncio.create_task(to_its_end())


async def _let_go(run: BatchRun, lease: BatchLease, threads: StoreThreads) -> None:
    """Leaves as little as may be to do again, and to wait for."""
    try:
        with suppress(BatchLost):
            await run.flush()
    finally:
        await threads.call(lease.release)


def oldest_first(found: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """Orders owners' batches by when they were made, which their ids begin with."""
    return sorted(found, key=lambda one: one[1])


def remove_expired(batches: KeptBatches, files: KeptFiles, keep_s: float | None) -> None:
    """Leaves what open batches still read. Blocks; several replicas may do it at once."""
    needed: defaultdict[str, set[str]] = defaultdict(set)
    for owner, batch_id in batches.open_batches():
        request = batches.request(owner, batch_id)
        if request is not None:
            needed[owner].add(request.input_file_id)
    num_files = num_batches = 0
    for owner in batches.owners():
        num_files += files.remove_expired(owner, needed[owner])
        if keep_s is not None:
            num_batches += batches.forget_ended(owner, before_s=time.time() - keep_s)
    if num_files or num_batches:
        logger.info("removed what has expired", extra={"files": num_files, "batches": num_batches})
