"""The engine process's models: who is loaded, in which order they come and go."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue

from pdmux_actor.engine import Inbox
from pdmux_actor.errors import BaseNotHere, ModelLoadError, ModelTooLarge
from pdmux_actor.executor.base import HostingExecutor
from pdmux_actor.model_info import ModelInfo, ModelSource, longest_sequence_tokens
from pdmux_actor.scheduling.events import AttachAdapter, AttachModel, RemoveModel, ResizePool
from pdmux_actor.serving.commands import (
    Asleep,
    CallFailed,
    GraphsCaptured,
    LoadModelCommand,
    RemoveModelCommand,
    ResizePoolCommand,
    answered,
)
from pdmux_actor.serving.notice_sender import NoticeSender, ReadProgress
from pdmux_actor.serving.sleeping_models import Origin, SleepingModels

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NoRoom:
    """The engine could not attach what was loaded."""

    call: int
    model: str
    error: ModelLoadError


class LoadedModels:
    """Loads, wakes, puts to sleep and removes models one at a time, in the order asked for, on a thread of its own:
    others keep serving.
    """

    def __init__(
        self,
        executor: HostingExecutor,
        inbox: Inbox,
        sender: NoticeSender,
        *,
        host_memory_bytes: int = 0,
        on_loaded: Callable[[LoadModelCommand, ModelInfo], None] = lambda command, info: None,
        on_left: Callable[[str], None] = lambda model: None,
    ) -> None:
        """`on_loaded` is told of a model before requests for it can come, `on_left` when none can any more."""
        self._on_loaded, self._on_left = on_loaded, on_left
        self._executor = executor
        self._total_blocks = executor.total_blocks
        self._sleepers = SleepingModels(executor, host_memory_bytes)
        self._told = self._sleepers.told()
        self._origins: dict[str, Origin] = {}
        self._inbox = inbox
        self._sender = sender
        self._attached: dict[str, ModelInfo] = {}
        self._quota_blocks: dict[str, int] = {}
        self._bases: dict[str, str] = {}  # of adapters
        self._orders: SimpleQueue[LoadModelCommand | RemoveModelCommand | ResizePoolCommand | _NoRoom] = SimpleQueue()
        self._detached: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._work, name="loaded-models", daemon=True).start()

    def order(self, command: LoadModelCommand | RemoveModelCommand | ResizePoolCommand) -> None:
        self._orders.put(command)

    def max_model_lens(self, quota_blocks: Mapping[str, int]) -> dict[str, int]:
        """An adapter's sequences may be as long as its base's: they have their quotas together."""
        infos, bases = self._attached.copy(), self._bases.copy()  # read on another thread than the one that loads
        here = {model: quota for model, quota in quota_blocks.items() if model in infos}
        self._quota_blocks |= here
        return {model: self._longest(infos[model], bases) for model in here}

    def _longest(self, info: ModelInfo, bases: Mapping[str, str]) -> int:
        base, leased = bases.get(info.model, info.model), self._quota_blocks.copy()
        together = sum(quota for model, quota in leased.items() if bases.get(model, model) == base)
        return longest_sequence_tokens(info, together)

    def on_detached(self, model: str) -> None:
        self._detached.put(model)

    def _work(self) -> None:
        while True:
            # no deadline: nothing to load or wake
            match self._orders.get():
                case LoadModelCommand() as command:
                    self._load(command)
                case RemoveModelCommand() as command:
                    self._remove(command)
                case ResizePoolCommand() as command:
                    self._resize(command)
                case _NoRoom() as failed:
                    self._let_go(failed)

    def _resize(self, command: ResizePoolCommand) -> None:
        if not self._attached:
            self._total_blocks = self._executor.resize_pool(command.total_blocks)
            self._inbox.put(ResizePool(self._total_blocks))
        self._sender.send(answered(command.call, self._total_blocks))

    def _load(self, command: LoadModelCommand) -> None:
        origin = Origin.of(command)
        try:
            info, is_woken = self._fetch(command, origin)
        except ModelLoadError as error:
            self._sender.send(CallFailed(command.call, error.reason, error.remedy))
        except Exception as error:
            # The process serves other models: whatever a checkpoint makes a library raise fails this model only.
            logger.exception("loading a model failed", extra={"model": command.model})
            reason = f"{type(error).__name__}: {error}"
            self._sender.send(CallFailed(command.call, reason, "the unit's log has the traceback"))
        else:
            self._attached[command.model], self._origins[command.model] = info, origin
            self._on_loaded(command, info)
            self._quota_blocks[command.model] = command.quota_blocks
            self._tell_sleepers()
            answer, failed = partial(self._answer, command, info), partial(self._note_failure, command)
            if command.base is not None:
                self._bases[command.model] = command.base
                self._inbox.put(AttachAdapter(command.model, command.base, command.quota_blocks))
                answer()
            elif is_woken:  # somebody waits for it
                self._inbox.put(AttachModel(info, command.quota_blocks, on_attached=answer, on_failed=failed))
            else:
                tell_captured = partial(self._tell_captured, info.model)
                self._inbox.put(AttachModel(info, command.quota_blocks, answer, tell_captured, on_failed=failed))

    def _answer(self, command: LoadModelCommand, info: ModelInfo) -> None:
        """May be on the engine's thread, while another model is loading."""
        self._sender.send(answered(command.call, self._longest(info, self._bases.copy())))

    def _note_failure(self, command: LoadModelCommand, error: ModelLoadError) -> None:
        """On the engine's thread."""
        self._orders.put(_NoRoom(call=command.call, model=command.model, error=error))

    def _let_go(self, failed: _NoRoom) -> None:
        """Of a model that was loaded, and for whose launches there was no room."""
        if failed.model in self._attached:
            self._take_out_adapters(failed.model)  # that were ordered before this was known
            self._take_out(failed.model)
        self._sender.send(CallFailed(failed.call, failed.error.reason, failed.error.remedy))

    def _tell_captured(self, model: str, done_graphs: int, total_graphs: int) -> None:
        self._sender.send(GraphsCaptured(model, done_graphs, total_graphs))

    def _fetch(self, command: LoadModelCommand, origin: Origin) -> tuple[ModelInfo, bool]:
        """Whether it was asleep, too."""
        if command.base is not None:
            return self._fetch_adapter(command, command.base), False
        try:
            woken = self._sleepers.wake(command.model, origin)
            return (self._read(command), False) if woken is None else (woken, True)
        except ModelTooLarge:
            # Where both lie in one memory, those that serve come first.
            if not (self._executor.memory_is_host and self._sleepers.forget_all()):
                raise
            self._tell_sleepers()
            return self._read(command), False

    def _fetch_adapter(self, command: LoadModelCommand, base: str) -> ModelInfo:
        """Its base in all but the name. An adapter never sleeps: it is read again in no time."""
        if base not in self._attached or base in self._bases:
            raise BaseNotHere(model=command.model, base=base)
        self._executor.load_adapter(command.model, base, command.source, revision=command.revision)
        return replace(self._attached[base], model=command.model)

    def _read(self, command: LoadModelCommand) -> ModelInfo:
        return self._executor.load_model(
            ModelSource(
                model=command.model,
                source=command.source,
                revision=command.revision,
                dtype=command.dtype,
                weights=command.weights,
                max_model_len=command.max_model_len,
            ),
            on_progress=ReadProgress(command.model, self._sender).note,
        )

    def _remove(self, command: RemoveModelCommand) -> None:
        if command.model in self._attached:
            self._take_out_adapters(command.model)
            origin = self._origins[command.model]
            if command.sleep and command.model not in self._bases:
                self._sleepers.put(command.model, origin)
            self._take_out(command.model)
        elif not command.sleep:
            self._sleepers.forget(command.model)
        self._tell_sleepers()
        self._sender.send(answered(command.call, None))

    def _take_out_adapters(self, model: str) -> None:
        for adapter in [a for a, base in self._bases.items() if base == model]:
            self._take_out(adapter)

    def _take_out(self, model: str) -> None:
        """Returns when the engine has let it go."""
        del self._attached[model], self._origins[model]
        self._quota_blocks.pop(model, None)
        self._bases.pop(model, None)
        self._inbox.put(RemoveModel(model))
        # no deadline: the actor kills an engine whose model does not leave within engine.watch.load_s
        detached = self._detached.get()
        assert detached == model, f"{detached} left, {model} was asked to"
        self._on_left(model)

    def _tell_sleepers(self) -> None:
        told = self._sleepers.told()
        if told != self._told:
            self._told = told
            self._sender.send(Asleep(told))
