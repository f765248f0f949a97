"""One SGLang engine and what is asked of it."""

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec

from pdmux_actor.backends.sglang.hooks import QUOTA_RPC, TIME_RPC
from pdmux_actor.backends.sglang.launch import Launch, plan_launch
from pdmux_actor.backends.sglang.link import DecisionsTold, PluginHello, PluginLoad, UsePolicy
from pdmux_actor.backends.sglang.load import load_report
from pdmux_actor.backends.sglang.options import FUSING_POLICIES
from pdmux_actor.backends.sglang.plugin_line import PluginLine
from pdmux_actor.backends.sglang.sleeping_engine import IdleWatch, Sleeper, checkpoint_files, put_to_sleep, wake
from pdmux_actor.backends.sglang.streams import RequestStreams
from pdmux_actor.errors import ModelLoadError
from pdmux_actor.kv.prefix_kv import NOTHING_KEPT
from pdmux_actor.scheduling.decision import LogExcerpt
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.serving.commands import (
    AbortRequest,
    Asleep,
    CallFailed,
    ChangePolicy,
    Command,
    EngineSettings,
    KeepPrefixCommand,
    LoadModelCommand,
    LoadReported,
    ReadDecisionsCommand,
    ReadPrefixCommand,
    RemoveModelCommand,
    ResizePoolCommand,
    SetQuotasCommand,
    Submit,
    TimeLaunch,
    answered,
)
from pdmux_actor.serving.notice_sender import NoticeSender
from profiler.specs import DeviceSpec

logger = logging.getLogger(__name__)

_HELLO_TIMEOUT_S = 10.0  # after the engine says that it is up
_KEEP_TIMEOUT_S = 2.0  # a scheduler that is stuck does not answer, and the actor waits 5 s for this process
_EXIT_BUG = 70  # EX_SOFTWARE of sysexits.h


class SglangHost:
    """Commands come on the event loop. Starting SGLang blocks it: there is no other model to serve meanwhile."""

    def __init__(
        self, settings: EngineSettings, device: DeviceSpec, sender: NoticeSender, folder: Path, *, host_bytes: int
    ) -> None:
        """`host_bytes` are for the weights of a model that sleeps."""
        self._settings = settings
        self._pool_bytes = settings.kv_pool_bytes or 0
        self._host_bytes = host_bytes
        self._wake_s_per_byte: float | None = None  # of its last return
        self._device = device
        self._sender = sender
        self._folder = folder
        self._policy = settings.policy
        self._line = PluginLine(folder / "plugin.sock", self._on_load)
        self._engine: Any = None
        self._launch: Launch | None = None
        self._quota_blocks = 0
        self._changing = asyncio.Lock()
        self._watch = IdleWatch()
        self._asleep: Sleeper | None = None
        self._command: LoadModelCommand | None = None
        self._streams = RequestStreams(sender)
        self._tasks: set[asyncio.Task[None]] = set()
        self._starts = itertools.count()

    async def listen(self) -> None:
        await self._line.listen()

    async def close(self) -> None:
        if self._engine is not None:
            await self._stop_engine()
        await self._line.close()

    def take(self, command: Command) -> None:
        match command:
            case Submit(request=request):
                self._streams.submit(request)
            case AbortRequest(request_id=request_id):
                self._streams.abort(request_id)
            case LoadModelCommand():
                self._spawn(self._load(command))
            case RemoveModelCommand():
                self._spawn(self._remove(command))
            case ResizePoolCommand():
                self._spawn(self._resize(command))
            case SetQuotasCommand(call=call, quota_blocks=quota_blocks):
                self._sender.send(answered(call, self._set_quotas(quota_blocks)))
            case ChangePolicy(policy=policy):
                self._set_policy(policy)
            case ReadDecisionsCommand(call=call, last=last):
                self._spawn(self._tell_decisions(call, last))
            case ReadPrefixCommand(call=call):
                self._sender.send(answered(call, None))
            case KeepPrefixCommand(call=call):
                self._sender.send(answered(call, NOTHING_KEPT))
            case TimeLaunch():
                self._spawn(self._time_launch(command))
            case _:
                raise AssertionError(f"{type(command).__name__} is for the process")

    # ---- the model ----

    async def _load(self, command: LoadModelCommand) -> None:
        try:
            async with self._changing:
                launch = await self._wake(command) or await self._start(command)
        except ModelLoadError as error:
            self._tell_sleeper()
            self._sender.send(CallFailed(command.call, error.reason, error.remedy))
            return
        self._launch, self._command, self._quota_blocks = launch, command, command.quota_blocks
        self._tell_sleeper()
        self._streams.open(self._engine, launch, command.quota_blocks)
        self._sender.send(answered(command.call, launch.max_len(command.quota_blocks)))

    async def _resize(self, command: ResizePoolCommand) -> None:
        """Of the engine that is started next: one that sleeps goes, its pool has another size."""
        async with self._changing:
            if self._launch is None:
                self._pool_bytes = command.total_blocks * self._settings.block_bytes
                self._asleep = None
                await self._stop_engine()
                self._tell_sleeper()
        self._sender.send(answered(command.call, self._pool_bytes // self._settings.block_bytes))

    async def _wake(self, command: LoadModelCommand) -> Launch | None:
        """None: what sleeps here, if anything does, is not the model asked for. It is gone then."""
        sleeper, self._asleep = self._asleep, None
        if sleeper is None:
            return None
        fuses = sleeper.launch.unmultiplexed is None and self._policy in FUSING_POLICIES  # it was changed meanwhile
        if fuses or not sleeper.is_asked_for(command):
            await self._stop_engine()
            return None
        began_s = time.perf_counter()
        await wake(self._engine)
        self._wake_s_per_byte = (time.perf_counter() - began_s) / max(1, sleeper.launch.info.spec.weight_bytes)
        self._line.send(UsePolicy(self._policy))
        tokens = sleeper.launch.quota_tokens(command.quota_blocks)
        await asyncio.to_thread(self._engine.collective_rpc, QUOTA_RPC, tokens=tokens)
        logger.info("SGLang serves again, after a sleep", extra={"model": command.model})
        return sleeper.launch

    async def _start(self, command: LoadModelCommand) -> Launch:
        if self._launch is not None:
            raise ModelLoadError(
                model=command.model,
                reason=f"this unit's SGLang engine serves {self._launch.info.model}, and one model at a time",
                remedy="give the pool a unit for each of its models, or use backend: native",
            )
        folder = self._folder / f"start-{next(self._starts)}"
        folder.mkdir()
        launch = plan_launch(
            msgspec.structs.replace(self._settings, kv_pool_bytes=self._pool_bytes),
            command,
            policy=self._policy,
            device=self._device,
            folder=folder,
            socket=str(self._line.path),
        )
        if launch.unmultiplexed is not None:
            told = {"model": command.model, "reason": launch.unmultiplexed}
            logger.warning("SGLang runs without multiplexing", extra=told)
        self._line.expect_hello()
        self._engine = _new_engine(command.model, launch)
        try:
            hello = await asyncio.wait_for(self._line.hello(), _HELLO_TIMEOUT_S)
        except TimeoutError:
            hello = None
        if hello is None or hello.missing:
            await self._stop_engine()
            missing = "it did not report" if hello is None else f"hooks are missing: {', '.join(hello.missing)}"
            raise ModelLoadError(
                model=command.model,
                reason=f"the muxfleet plugin is not active in SGLang's scheduler ({missing})",
                remedy="install muxfleet into SGLang's environment (its entry point makes it a plugin), leave "
                "SGLANG_PLUGINS unset or name muxfleet in it, and use a supported SGLang version",
            )
        self._log_start(command.model, launch, hello)
        return launch

    def _log_start(self, model: str, launch: Launch, hello: PluginHello) -> None:
        how = "multiplexing off"
        if launch.unmultiplexed is None:
            shares = " ".join(f"{prefill}+{decode}" for prefill, decode in hello.groups)
            how = f"policy {self._policy}, partitions (prefill+decode SMs) {shares}"
        logger.info(
            "SGLang serves, plugin active", extra={"model": model, "kv_tokens": hello.total_tokens, "reason": how}
        )

    async def _remove(self, command: RemoveModelCommand) -> None:
        async with self._changing:  # an RPC would wait for ever for an engine that is gone
            launch, loaded = self._launch, self._command
            if launch is not None and loaded is not None and loaded.model == command.model:
                self._streams.close(f"model {command.model!r} has left this unit")
                self._launch = None
                files = checkpoint_files(launch)
                if command.sleep and self._has_room(launch) and await put_to_sleep(self._engine, self._watch):
                    self._asleep = Sleeper(command=loaded, launch=launch, files=files, wake_s=self._wake_s(launch))
                else:
                    await self._stop_engine()
            elif self._asleep is not None and self._asleep.command.model == command.model and not command.sleep:
                self._asleep = None
                await self._stop_engine()
            self._tell_sleeper()
        self._sender.send(answered(command.call, None))

    def _has_room(self, launch: Launch) -> bool:
        return self._settings.sglang.sleep and launch.info.spec.weight_bytes <= self._host_bytes

    def _wake_s(self, launch: Launch) -> float:
        weight_bytes, num_gpus = launch.info.spec.weight_bytes, self._settings.num_gpus
        if self._wake_s_per_byte is not None:
            return weight_bytes * self._wake_s_per_byte
        copies_per_s = self._device.host_copy_bytes_per_s * num_gpus  # each GPU has its own link
        return weight_bytes / copies_per_s if copies_per_s else 0.0

    def _tell_sleeper(self) -> None:
        self._sender.send(Asleep(() if self._asleep is None else (self._asleep.told,)))

    async def _stop_engine(self) -> None:
        if self._settings.guard is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._line.keep_guard(), _KEEP_TIMEOUT_S)
        engine, self._engine = self._engine, None
        if engine is not None:  # the end of the process and a model that leaves may both have waited here
            engine.shutdown()

    # ---- what changes while it runs ----

    def _set_quotas(self, quota_blocks: dict[str, int]) -> dict[str, int]:
        launch = self._launch
        if launch is None or launch.info.model not in quota_blocks:
            return {}
        self._quota_blocks = quota_blocks[launch.info.model]
        self._streams.limit(self._quota_blocks)
        self._spawn(self._tell_quota())
        return {launch.info.model: launch.max_len(self._quota_blocks)}

    async def _tell_quota(self) -> None:
        """One at a time, the newest last; SGLang's RPC blocks."""
        async with self._changing:
            if self._launch is not None:
                tokens = self._launch.quota_tokens(self._quota_blocks)
                await asyncio.to_thread(self._engine.collective_rpc, QUOTA_RPC, tokens=tokens)

    def _set_policy(self, policy: str) -> None:
        if policy not in POLICIES:
            logger.error("unknown dispatch policy: the one in force stays", extra={"policy": policy})
        elif self._launch is not None and (self._launch.unmultiplexed is None) and policy in FUSING_POLICIES:
            told = {"policy": policy}
            logger.error("the policy fuses prompts into decode steps, which SGLang's multiplexing cannot", extra=told)
        else:
            self._policy = policy
            if self._launch is not None:
                self._line.send(UsePolicy(policy))

    # ---- what it tells ----

    async def _tell_decisions(self, call: int, last: int) -> None:
        told = DecisionsTold(call, 0.0, ())
        if self._launch is not None:
            told = await self._line.decisions(max(0, last))
        self._sender.send(answered(call, LogExcerpt(now_s=told.now_s, unix_s=time.time(), decisions=told.decisions)))

    async def _time_launch(self, command: TimeLaunch) -> None:
        launch, beside = msgspec.to_builtins((command.launch, command.beside))

        async def ask(call: int) -> None:
            await asyncio.to_thread(self._engine.collective_rpc, TIME_RPC, call=call, launch=launch, beside=beside)

        assert self._launch is not None, "a launch of no model"
        try:
            seconds = await self._line.launch_s(ask)
        except AssertionError as error:  # how SGLang says that an RPC failed
            self._sender.send(CallFailed(command.call, str(error)))
        else:
            self._sender.send(answered(command.call, seconds))

    def _on_load(self, load: PluginLoad) -> None:
        self._watch.note(load)
        if self._launch is not None:
            total_blocks = self._pool_bytes // self._settings.block_bytes
            report = load_report(load, self._launch, self._quota_blocks, total_blocks, self._streams.counts)
            self._sender.send(LoadReported(report))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the engine process is of no use any more", exc_info=error)
            os._exit(_EXIT_BUG)


def _new_engine(model: str, launch: Launch) -> Any:
    """On the main thread: SGLang's children end with the thread that started them."""
    try:
        import sglang
        from sglang.srt.environ import envs
    except ImportError as error:
        raise ModelLoadError(
            model=model,
            reason=f"SGLang cannot be imported: {error}",
            remedy="docs/sglang.md has its environment and image",
        ) from error
    # Dumps of a crashed scheduler take a minute, in which the unit would seem alive.
    envs.SGLANG_PYSPY_DUMP_BEFORE_CRASH.set(False)
    envs.SGLANG_CUDA_COREDUMP_BEFORE_CRASH.set(False)
    try:
        return sglang.Engine(**launch.arguments)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:  # how SGLang refuses arguments
        reason = f"SGLang does not start: {type(error).__name__}: {error}"
        raise ModelLoadError(model=model, reason=reason, remedy="check pools[].sglang and the unit's log") from error
