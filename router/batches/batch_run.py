"""The work on one batch, from its check to its last file; it goes on where another replica stopped."""

import asyncio
import logging
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import islice
from types import MappingProxyType
from typing import IO

import msgspec

from router.batches.batch_lease import BatchLease
from router.batches.batch_record import TERMINAL, BatchRequest, BatchState, LineFault, Status
from router.batches.batch_settings import BatchSettings
from router.batches.input_lines import InputLine, checked, lines
from router.batches.kept_batches import KeptBatches, LineResult, result_file_id
from router.batches.kept_files import KeptFiles, least_of
from router.batches.line_runner import AskLine, not_asked, result_of
from router.batches.object_store import StoreThreads
from router.telemetry.metrics import BatchMetrics

logger = logging.getLogger(__name__)

_LINES_AT_A_TIME = 64  # read from the input's file
_LOST_SHARE = 0.01  # of the time that a batch has taken
_LEFT_BEHIND: Mapping[Status, tuple[str, str]] = MappingProxyType(
    {
        "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
        "cancelled": ("batch_cancelled", "This request was not executed: the batch was cancelled."),
    }
)


class BatchLost(Exception):
    """Another replica has taken the batch over."""


class BatchRun:
    """`places` are lines that this replica may work on at once, of all its batches."""

    def __init__(
        self,
        request: BatchRequest,
        lease: BatchLease,
        *,
        batches: KeptBatches,
        files: KeptFiles,
        settings: BatchSettings,
        ask: AskLine,
        places: asyncio.Semaphore,
        threads: StoreThreads,
        metrics: BatchMetrics,
    ) -> None:
        self._request = request
        self._lease = lease
        self._batches = batches
        self._files = files
        self._settings = settings
        self._ask = ask
        self._places = places
        self._threads = threads
        self._metrics = metrics
        self._state = BatchState()
        self._fresh: list[LineResult] = []  # not written yet
        self._parts = 0
        self._ends_as: Status | None = None  # before all lines are done
        self._writing = asyncio.Lock()  # else what was read of the state first could be written last
        self._takes = asyncio.Event()  # the store does: while it does not, no more results are to be kept here
        self._takes.set()
        self._renewed_s = time.monotonic()  # the time of day may be set meanwhile

    @property
    def owner(self) -> str:
        return self._request.owner

    @property
    def lines_left(self) -> int:
        """Counts lines that have no result yet; none before the input is checked."""
        return max(0, self._state.total - self._state.completed - self._state.failed)

    async def run(self) -> Status:
        """Returns how it ended. Raises BatchLost, and OSError where the store fails: then it is open still."""
        self._state = await self._threads.call(self._batches.state, self._request)
        if self._state.status not in TERMINAL:
            keeper = asyncio.create_task(self._keep())
            work = asyncio.create_task(self._work())
            try:
                # no deadline: the batch has one, which the keeper watches
                await asyncio.wait((keeper, work), return_when=asyncio.FIRST_COMPLETED)
                (keeper if not work.done() else work).result()
            finally:
                for task in (keeper, work):
                    task.cancel()
                await asyncio.gather(keeper, work, return_exceptions=True)
        await self._threads.call(self._batches.close, self._request)
        return self._state.status

    # ---- beside the work ----

    async def _keep(self) -> None:
        """Keeps the lease, writes results and figures, and looks whether the batch is to end early."""
        began_s = written_s = time.monotonic()
        while True:
            await asyncio.sleep(self._settings.flush_s)
            try:
                await self._look()
                await self._keep_lease()
                now_s = time.monotonic()
                if now_s - written_s >= flush_after_s(now_s - began_s, self._settings.flush_s):
                    await self.flush()
                    written_s = now_s
                elif self._fresh:
                    await self._set(self._state)
            except OSError as error:  # a full disk: what was answered waits here, and no more is asked
                if self._takes.is_set():
                    told = {"batch": self._request.id, "reason": str(error)}
                    logger.warning("a batch waits: the store does not take its results", extra=told)
                self._takes.clear()
            else:
                self._takes.set()

    async def _keep_lease(self) -> None:
        """Raises BatchLost."""
        now_s = time.monotonic()
        if now_s - self._renewed_s >= self._settings.lease_s / 3:
            if not await self._threads.call(self._lease.renew, now_s=time.time(), lease_s=self._settings.lease_s):
                raise BatchLost
            self._renewed_s = now_s

    async def _look(self) -> None:
        if await self._threads.call(self._batches.cancelling_at, self._request) is not None:
            self._ends_as = "cancelled"
        elif time.time() >= self._request.expires_at:
            self._ends_as = "expired"

    async def flush(self) -> None:
        """Writes the results that are not written yet. Raises BatchLost."""
        async with self._writing:
            if self._fresh:
                results, self._fresh = self._fresh, []
                self._parts += 1
                try:
                    await self._threads.call(self._write_results, self._parts, results)
                except BaseException:  # the call may be cancelled, too; a result that is written twice counts once
                    self._fresh = [*results, *self._fresh]
                    raise
                await self._threads.call(self._write_state, self._state)

    async def _flush_all(self) -> None:
        """Tries again until the store takes them; the keeper says that it does not, and whether the batch is lost."""
        while True:
            try:
                return await self.flush()
            except OSError:
                await asyncio.sleep(self._settings.flush_s)

    async def _set(self, state: BatchState) -> None:
        async with self._writing:
            self._state = state
            await self._threads.call(self._write_state, state)

    def _write_state(self, state: BatchState) -> None:
        """Raises BatchLost: one that stood for a while may find that another replica has brought the batch to its end,
        and nobody would work on it once it were under way again.
        """
        self._check_held()
        self._batches.set_state(self._request, state)

    def _write_results(self, part: int, results: Sequence[LineResult]) -> None:
        """Raises BatchLost."""
        self._check_held()
        self._batches.add_results(self._request, self._lease.number, part, results)

    def _check_held(self) -> None:
        if not self._lease.is_held():
            raise BatchLost

    # ---- the work ----

    async def _work(self) -> None:
        try:
            file = await self._threads.call(self._files.open, self._request.owner, self._request.input_file_id)
        except FileNotFoundError:
            fault = LineFault(code="input_file_not_found", message="The input file was deleted.", param="input_file_id")
            written = await self._threads.call(self._write_files)  # what was answered until then
            await self._set(self._state.at("failed", time.time(), faults=[fault], **written))
            return
        with file:
            if self._state.status == "validating" and not await self._is_sound(file):
                return
            await self._look()  # it may have come to its end while nobody worked on it
            done = await self._threads.call(self._done)
            file.seek(0)
            await self._ask_lines(lines(file, self._settings), done)
            file.seek(0)
            await self._finish(lines(file, self._settings))

    async def _is_sound(self, file: IO[bytes]) -> bool:
        found = await self._threads.call(checked, file, self._request.endpoint, self._settings)
        if found.faults:
            await self._set(self._state.at("failed", time.time(), faults=found.faults))
            return False
        await self._set(self._state.at("in_progress", time.time(), total=found.total, model=found.model))
        return True

    def _done(self) -> set[int]:
        completed = failed = 0
        done: set[int] = set()
        for result in self._batches.results(self._request):
            done.add(result.number)
            completed, failed = completed + result.ok, failed + (not result.ok)
        self._state = msgspec.structs.replace(self._state, completed=completed, failed=failed)
        return done

    async def _ask_lines(self, coming: Iterator[InputLine], done: set[int]) -> None:
        asking: set[asyncio.Task[None]] = set()
        try:
            async with aclosing(self._read_ahead(coming)) as read:
                async for line in read:
                    if line.number in done:
                        continue
                    if not await self._place():
                        break
                    task = asyncio.create_task(self._ask_line(line))
                    asking.add(task)
                    task.add_done_callback(lambda _: self._places.release())  # also of one that never began
                    task.add_done_callback(asking.discard)
            while asking and self._ends_as is None:
                # each line has its own deadline
                await asyncio.wait(asking, timeout=self._settings.flush_s)
        finally:
            left = list(asking)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        await self._flush_all()

    async def _place(self) -> bool:
        """Waits for a place, and for the store to take results. False: the batch ends early."""
        while self._ends_as is None:
            try:
                async with asyncio.timeout(self._settings.flush_s):
                    await self._takes.wait()
                    await self._places.acquire()
            except TimeoutError:
                continue
            return True
        return False

    async def _ask_line(self, line: InputLine) -> None:
        self._add(await result_of(line, self._request, self._ask))

    def _add(self, result: LineResult) -> None:
        self._fresh.append(result)
        self._metrics.line_done(ok=result.ok)
        state = self._state
        self._state = msgspec.structs.replace(
            state, completed=state.completed + result.ok, failed=state.failed + (not result.ok)
        )

    async def _finish(self, coming: Iterator[InputLine]) -> None:
        await self._set(self._state.at("finalizing", time.time()))
        await self._threads.call(self._leave_behind, coming)
        written = await self._threads.call(self._write_files)
        await self._set(self._state.at(self._ends_as or "completed", time.time(), **written))

    def _leave_behind(self, coming: Iterator[InputLine]) -> None:
        """Gives every line that was not asked its result, too."""
        if self._ends_as is None:
            return
        code, message = _LEFT_BEHIND[self._ends_as]
        done = self._done()
        left = [not_asked(line, code, message) for line in coming if line.number not in done]
        if left:
            self._parts += 1
            self._write_results(self._parts, left)
            self._state = msgspec.structs.replace(self._state, failed=self._state.failed + len(left))

    def _write_files(self) -> dict[str, str | int]:
        """Returns the fields of the state that they change."""
        counts = {True: 0, False: 0}
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            for result in self._batches.results(self._request):
                counts[result.ok] += 1
                (output if result.ok else errors).write(bytes(result.line) + b"\n")
            fields: dict[str, str | int] = {"completed": counts[True], "failed": counts[False]}
            for kind, number, source in (("output", counts[True], output), ("error", counts[False], errors)):
                if number:
                    source.seek(0)
                    name, file_id = f"{self._request.id}_{kind}.jsonl", result_file_id(self._request, kind)
                    self._files.add(
                        self._request.owner,
                        source,
                        filename=name,
                        purpose="batch_output",
                        keep_s=least_of(self._settings.keep_s, self._request.output_keep_s),
                        file_id=file_id,
                    )
                    fields[f"{kind}_file_id"] = file_id
        return fields

    async def _read_ahead(self, coming: Iterator[InputLine]) -> AsyncGenerator[InputLine, None]:
        while some := await self._threads.call(lambda: list(islice(coming, _LINES_AT_A_TIME))):
            for line in some:
                yield line


def flush_after_s(worked_s: float, flush_s: float) -> float:
    """Returns how long results may be unwritten, which a crash costs again: a hundredth of the time of the batch. With
    a part every two seconds a batch of a day would have 43,000, and who takes it over, and its end, reads all of them.
    """
    return max(flush_s, _LOST_SHARE * worked_s)
