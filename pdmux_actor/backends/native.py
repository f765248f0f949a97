"""An engine in its own process, as asyncio sees it: ours, or one that hosts SGLang."""

import asyncio
import itertools
import logging
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from pdmux_actor.backends.base import EngineCapacity
from pdmux_actor.backends.registry import BY_KIND
from pdmux_actor.errors import EngineDied, EngineStartFailed, LaunchFailed, ModelLoadError
from pdmux_actor.kv.prefix_kv import KeptRows, PrefixRows, PromptStart
from pdmux_actor.lease import LoadProgress, LoadStage, ModelAssignment, SleepingWeights, capturing
from pdmux_actor.messages import GenerateRequest, LoadReport, TokenEvent
from pdmux_actor.scheduling.decision import LogExcerpt
from pdmux_actor.serving.commands import (
    AbortRequest,
    Answer,
    Answered,
    Asleep,
    Call,
    CallFailed,
    ChangePolicy,
    Command,
    EngineSettings,
    GraphsCaptured,
    KeepPrefixCommand,
    LoadModelCommand,
    LoadReported,
    Notice,
    ReadDecisionsCommand,
    ReadPrefixCommand,
    RemoveModelCommand,
    ResizePoolCommand,
    SetQuotasCommand,
    Shutdown,
    Started,
    Submit,
    TimeLaunch,
    Tokens,
    WeightsRead,
)
from pdmux_actor.serving.engine_environment import ENGINE_ENVIRONMENT
from pdmux_actor.serving.engine_log import ask_for_stacks, read_line
from pdmux_actor.serving.engine_watch import EngineWatch, WatchSettings
from pdmux_actor.serving.frames import FrameReader, framed
from pdmux_actor.serving.own_program import own_program
from profiler.probe import LaunchShape

logger = logging.getLogger(__name__)

_READ_BYTES = 256 * 1024
_LAST_LINES = 20
_MAX_LINE_BYTES = 16 * 1024
_EXIT_TIMEOUT_S = 5.0
_WATCH_PERIOD_S = 0.25
_REPORTS_UNTIL_SUSPECT = 3  # that may be late or missing
_ROWS: msgspec.msgpack.Decoder[PrefixRows | None] = msgspec.msgpack.Decoder(PrefixRows | None)
ValueT = TypeVar("ValueT")


class NativeEngine:
    """Implements backends.base.Engine over an engine process.

    Call `start` on a thread that lives as long as the engine: the kernel ends the process with the thread that started
    it. The process's end shows as end-of-file on the socket, within milliseconds. A process that hangs is killed; one
    that runs SGLang is not watched for that, SGLang's own watchdog does it.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        start_timeout_s: float = 120.0,
        watch: WatchSettings | None = None,
        run_by: str | None = None,
    ) -> None:
        """`run_by` is a program of ours that runs the engine's, given its name and arguments, with compiled modules:
        only if the backend has the kind among its `compiled_kinds`.
        """
        watch = watch or WatchSettings()
        idle_report_s = min(settings.idle_report_s, watch.suspect_s / _REPORTS_UNTIL_SUSPECT)
        self._settings = msgspec.structs.replace(settings, idle_report_s=idle_report_s)
        self._start_timeout_s = start_timeout_s
        self._backend = BY_KIND[settings.kind]
        self._command = own_program(self._backend.program)
        if run_by is not None and settings.kind in self._backend.compiled_kinds:
            self._command = (*own_program(run_by), self._backend.program)
        self._watch = EngineWatch(watch)
        self._watching: asyncio.Task[None] | None = None
        self._hang: str | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._started: asyncio.Future[Started] | None = None
        self._calls: dict[int, asyncio.Future[Answer]] = {}
        self._call_ids = itertools.count()
        self._events: asyncio.Queue[Sequence[TokenEvent] | None] = asyncio.Queue()  # None: no more will come
        self._load: LoadReport | None = None
        self._asleep: Mapping[str, SleepingWeights] = {}
        self._reading: dict[str, LoadProgress] = {}
        self._death: EngineDied | None = None
        self._was_stopped = False  # it ended because we asked it to
        self._stopping = False
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> EngineCapacity:
        """Raises EngineStartFailed: the process ended, or said nothing for `start_timeout_s`."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                str(theirs.fileno()),
                msgspec.json.encode(self._settings).decode(),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={**ENGINE_ENVIRONMENT, **os.environ},
            )
        ours.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._started = asyncio.get_running_loop().create_future()
        self._tasks = [asyncio.create_task(self._read(reader)), asyncio.create_task(self._log_stderr())]
        try:
            started = await asyncio.wait_for(self._started, self._start_timeout_s)
        except TimeoutError:
            await self._kill()
            raise EngineStartFailed(reason=f"no sign of life in {self._start_timeout_s:g} s") from None
        except EngineDied as death:
            await asyncio.wait(self._tasks, timeout=1.0)
            raise EngineStartFailed(reason=f"{death}; its last words: {self._last_words()}") from death
        if self._backend.is_watched:
            self._watching = asyncio.create_task(self._keep_watch())
        return EngineCapacity(
            device=started.device,
            memory_bytes=started.memory_bytes,
            block_bytes=started.block_bytes,
            total_blocks=started.total_blocks,
            max_models=started.max_models,
            constrains=started.constrains,
            host_memory_bytes=started.host_memory_bytes,
            measured_device=started.measured_device,
            launch_limits=self._settings.scheduler.launch_limits(),
            sizes_pool=started.sizes_pool,
        )

    async def resize_pool(self, total_blocks: int) -> int:
        command = ResizePoolCommand(call=next(self._call_ids), total_blocks=total_blocks)
        return _value(await self._call(command, within_s=self._watch.settings.load_s), int)

    async def add_model(self, assignment: ModelAssignment) -> int:
        self._reading.pop(assignment.model, None)
        answer = await self._call(
            LoadModelCommand(
                call=next(self._call_ids),
                model=assignment.model,
                source=assignment.source,
                quota_blocks=assignment.quota_blocks,
                revision=assignment.revision,
                dtype=assignment.dtype,
                weights=assignment.weights,
                max_model_len=assignment.max_model_len,
                base=assignment.base,
            ),
            within_s=self._watch.settings.load_s,
        )
        if isinstance(answer, CallFailed):
            raise ModelLoadError(model=assignment.model, reason=answer.reason, remedy=answer.remedy)
        return _value(answer, int)

    def load_progress(self, model: str) -> LoadProgress | None:
        return self._reading.get(model)

    async def remove_model(self, model: str, *, sleep: bool = False) -> None:
        # Behind the loads that were asked for before.
        command = RemoveModelCommand(call=next(self._call_ids), model=model, sleep=sleep)
        await self._call(command, within_s=self._watch.settings.load_s)

    def asleep(self) -> Mapping[str, SleepingWeights]:
        return self._asleep

    async def set_quotas(self, quota_blocks: Mapping[str, int]) -> Mapping[str, int]:
        answer = await self._call(SetQuotasCommand(call=next(self._call_ids), quota_blocks=dict(quota_blocks)))
        return _value(answer, dict[str, int])

    async def set_policy(self, policy: str) -> None:
        self._send(ChangePolicy(policy))

    def submit(self, request: GenerateRequest) -> None:
        self._send(Submit(request))

    def abort(self, request_id: str) -> None:
        self._send(AbortRequest(request_id))

    async def events(self) -> AsyncIterator[Sequence[TokenEvent]]:
        # no deadline: the engine's death ends it, and one that hangs is killed
        while (events := await self._events.get()) is not None:
            yield events
        if self._death is not None and not self._was_stopped:
            raise self._death

    def load_report(self) -> LoadReport | None:
        return self._load

    async def decisions(self, last: int, *, request_ids: tuple[str, ...] = (), within_s: float = 0.0) -> LogExcerpt:
        answer = await self._call(
            ReadDecisionsCommand(call=next(self._call_ids), last=last, request_ids=request_ids, within_s=within_s)
        )
        return _value(answer, LogExcerpt)

    async def read_prefix(self, prompt: PromptStart, first_row: int) -> PrefixRows | None:
        answer = await self._call(ReadPrefixCommand(next(self._call_ids), prompt, first_row))
        assert isinstance(answer, Answered)
        return _ROWS.decode(answer.value)

    async def keep_prefix(self, prompt: PromptStart, rows: PrefixRows | None) -> KeptRows:
        return _value(await self._call(KeepPrefixCommand(next(self._call_ids), prompt, rows)), KeptRows)

    async def time_launch(self, model: str, launch: LaunchShape, beside: LaunchShape | None) -> float:
        """Times one launch of an engine that runs SGLang and has no request. Raises LaunchFailed."""
        answer = await self._call(TimeLaunch(next(self._call_ids), launch, beside))
        if isinstance(answer, CallFailed):
            raise LaunchFailed(model=model, reason=answer.reason)
        return _value(answer, float)

    def is_alive(self) -> bool:
        return self._process is not None and self._death is None and not self._stopping

    def is_stalled(self) -> bool:
        return self.is_alive() and self._watch.suspicion() is not None

    async def stop(self) -> None:
        """Ends the process: gently, then for good. What still runs is not answered."""
        self._stopping = True
        if self._process is None:
            return
        if self._watching is not None:  # the last thing that an engine does takes as long as it takes
            self._watching.cancel()
        self._send(Shutdown())
        try:
            await asyncio.wait_for(self._process.wait(), _EXIT_TIMEOUT_S)
        except TimeoutError:
            logger.warning("engine process does not end by itself", extra={"engine_pid": self.pid})
        await self._kill()

    async def _call(self, command: Call, *, within_s: float | None = None) -> Answer:
        """Without `within_s` it ends with the engine at the latest: one that hangs is killed."""
        if self._death is not None:
            raise self._death
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._calls[command.call] = answer
        self._send(command)
        try:
            if not (await asyncio.wait([answer], timeout=within_s))[0]:
                # The thread that does such work keeps all that comes after it waiting.
                self._give_up(f"{type(command).__name__.removesuffix('Command')} has not ended for {within_s:.0f} s")
            return await answer
        finally:
            del self._calls[command.call]

    def _send(self, command: Command) -> None:
        """To a dead engine nothing is sent: `events` tells its death."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(framed(command))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        notices: FrameReader[Notice] = FrameReader(Notice)
        try:
            while data := await reader.read(_READ_BYTES):
                for notice in notices.feed(data):
                    self._take(notice)
        except ConnectionError as error:
            logger.info("the engine's socket broke", extra={"reason": repr(error)})
        finally:
            await self._note_end()

    def _take(self, notice: Notice) -> None:
        match notice:
            case Tokens(events=events):
                self._watch.hear_tokens()
                self._events.put_nowait(events)
            case LoadReported(report=report):
                self._load = report
                self._watch.hear(report)
            case Asleep(models=models):
                self._asleep = {weights.model: weights for weights in models}
            case WeightsRead(model=model, done_bytes=done, total_bytes=total):
                self._reading[model] = LoadProgress(stage=LoadStage.READING, done_bytes=done, total_bytes=total)
            case GraphsCaptured(model=model, done_graphs=done, total_graphs=total):
                self._reading[model] = capturing(self._reading.get(model), done, total)
            case Started():
                assert self._started is not None
                self._started.set_result(notice)
            case _:
                answer = self._calls.get(notice.call)
                if answer is not None and not answer.done():  # its caller may have been cancelled
                    answer.set_result(notice)

    async def _note_end(self) -> None:
        """The socket is closed: the process has ended, or must."""
        assert self._process is not None
        assert self._writer is not None
        self._writer.close()
        try:
            exit_code: int | None = await asyncio.wait_for(self._process.wait(), 1.0)
        except TimeoutError:
            self._process.kill()
            exit_code = await self._exit_code()
        death = EngineDied(pid=self.pid, exit_code=exit_code, hang=self._hang)
        self._death, self._was_stopped = death, self._stopping
        if self._watching is not None:
            self._watching.cancel()
        for waiting in [self._started, *self._calls.values()]:
            if waiting is not None and not waiting.done():
                waiting.set_exception(death)
        self._events.put_nowait(None)
        if not self._was_stopped:
            await self._log_last_words(death)

    async def _exit_code(self) -> int | None:
        """None: the kernel does not let it go, as when it waits for a device; it is given up all the same."""
        assert self._process is not None
        try:
            return await asyncio.wait_for(self._process.wait(), _EXIT_TIMEOUT_S)
        except TimeoutError:
            return None

    async def _keep_watch(self) -> None:
        loop = asyncio.get_running_loop()
        looked_s = loop.time()
        while (hang := self._watch.hang()) is None:
            if self._process is not None and (reason := self._watch.new_suspicion()):
                ask_for_stacks(self._process.pid, reason)
            await asyncio.sleep(_WATCH_PERIOD_S)
            now_s = loop.time()
            # What this loop itself missed, it did not see the engine miss.
            self._watch.live(min(now_s - looked_s, 2 * _WATCH_PERIOD_S))
            looked_s = now_s
        self._give_up(hang)

    def _give_up(self, hang: str) -> None:
        """The end of the socket then tells its death."""
        assert self._process is not None
        assert self._writer is not None
        logger.error("engine process hangs and is killed", extra={"engine_pid": self.pid, "reason": hang})
        self._hang = hang
        if self._process.returncode is None:
            self._process.kill()
        self._writer.transport.abort()

    async def _log_last_words(self, death: EngineDied) -> None:
        await asyncio.wait(self._tasks[1:], timeout=1.0)
        logger.error("engine process has died", extra={"reason": str(death), "last_words": self._last_words()})

    def _last_words(self) -> str:
        return "\n".join(self._last_lines) or "none"

    async def _log_stderr(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        unfinished = b""
        while data := await self._process.stderr.read(_READ_BYTES):
            *lines, unfinished = (unfinished + data).split(b"\n")
            if len(unfinished) > _MAX_LINE_BYTES:
                lines, unfinished = [*lines, unfinished], b""
            for line in lines:
                self._note_line(line)
        if unfinished:
            self._note_line(unfinished)

    def _note_line(self, line: bytes) -> None:
        said = read_line(line)
        self._last_lines.append(said.text)
        logger.log(said.level, said.message, extra=said.fields)

    async def _kill(self) -> None:
        assert self._process is not None
        self._stopping = True
        if self._process.returncode is None:
            self._process.kill()
        await asyncio.wait(self._tasks, timeout=_EXIT_TIMEOUT_S)  # not for a process that the kernel does not let go


def _value(answer: Answer, kind: type[ValueT]) -> ValueT:
    assert isinstance(answer, Answered)
    return msgspec.msgpack.decode(answer.value, type=kind)
