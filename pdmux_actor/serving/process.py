"""The engine's own process. An actor starts it and talks to it over an inherited socket:

    python -m pdmux_actor.serving.process FD SETTINGS_JSON

It ends with the actor: at end-of-file on the socket, or by the kernel's parent-death signal.
"""

import ctypes
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from queue import SimpleQueue

import msgspec

from pdmux_actor.engine import build_engine
from pdmux_actor.errors import ModelLoadError
from pdmux_actor.executor.base import Executor
from pdmux_actor.inbox import Inbox
from pdmux_actor.kv.capacity import longest_sequence_tokens
from pdmux_actor.messages import LoadReport, TokenEvent
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.events import Abort, Arrival, AttachModel, SetPolicy, SetQuotas, Stop
from pdmux_actor.scheduling.events import RemoveModel as RemoveFromScheduler
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.serving.commands import (
    AbortRequest,
    ChangePolicy,
    ChangeQuotas,
    Command,
    CommandReader,
    EngineSettings,
    Load,
    LoadModel,
    ModelFailed,
    ModelLoaded,
    ModelRemoved,
    QuotasChanged,
    RemoveModel,
    Shutdown,
    Started,
    Submit,
    Tokens,
)
from pdmux_actor.serving.executors import build_executor
from pdmux_actor.serving.notice_sender import NoticeSender
from pdmux_actor.serving.removal_watch import WatchedExecutor
from profiler.roofline import RooflineLatency

logger = logging.getLogger(__name__)

_RECEIVE_BYTES = 256 * 1024
_PR_SET_PDEATHSIG = 1
_FLUSH_TIMEOUT_S = 5.0
_EXIT_PROTOCOL_ERROR = 70  # EX_SOFTWARE of sysexits.h


class ModelShelf:
    """Loads and removes models one at a time, in the order asked for, on a thread of its own: others keep serving."""

    def __init__(self, executor: Executor, inbox: Inbox, sender: NoticeSender) -> None:
        self._executor = executor
        self._inbox = inbox
        self._sender = sender
        self._attached: dict[str, ModelInfo] = {}
        self._orders: SimpleQueue[LoadModel | RemoveModel] = SimpleQueue()
        self._detached: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._work, name="model-shelf", daemon=True).start()

    def order(self, command: LoadModel | RemoveModel) -> None:
        self._orders.put(command)

    def max_model_lens(self, quota_blocks: Mapping[str, int]) -> dict[str, int]:
        infos = self._attached.copy()  # read on another thread than the one that loads
        return {
            model: longest_sequence_tokens(infos[model], quota)
            for model, quota in quota_blocks.items()
            if model in infos
        }

    def on_detached(self, model: str) -> None:
        self._detached.put(model)

    def _work(self) -> None:
        while True:
            match self._orders.get():
                case LoadModel() as command:
                    self._load(command)
                case RemoveModel() as command:
                    self._remove(command)

    def _load(self, command: LoadModel) -> None:
        try:
            info = self._executor.load_model(
                command.model,
                command.source,
                revision=command.revision,
                dtype=command.dtype,
                max_model_len=command.max_model_len,
            )
        except ModelLoadError as error:
            self._sender.send(ModelFailed(command.call, error.reason, error.remedy))
        except Exception as error:
            # The process serves other models: whatever a checkpoint makes a library raise fails this model only.
            logger.exception("loading model %s failed", command.model)
            reason = f"{type(error).__name__}: {error}"
            self._sender.send(ModelFailed(command.call, reason, "the unit's log has the traceback"))
        else:
            self._attached[command.model] = info
            self._inbox.put(AttachModel(info, command.quota_blocks))
            self._sender.send(ModelLoaded(command.call, longest_sequence_tokens(info, command.quota_blocks)))

    def _remove(self, command: RemoveModel) -> None:
        if command.model in self._attached:
            del self._attached[command.model]
            self._inbox.put(RemoveFromScheduler(command.model))
            detached = self._detached.get()
            assert detached == command.model, f"{detached} left, {command.model} was asked to"
        self._sender.send(ModelRemoved(command.call))


class CommandIntake:
    """The thread that turns the actor's commands into the engine's events."""

    def __init__(self, connection: socket.socket, inbox: Inbox, shelf: ModelShelf, sender: NoticeSender) -> None:
        self._connection = connection
        self._sender = sender
        self._inbox = inbox
        self._shelf = shelf

    def start(self) -> None:
        threading.Thread(target=self._read, name="command-intake", daemon=True).start()

    def _read(self) -> None:
        reader = CommandReader()
        try:
            while data := self._connection.recv(_RECEIVE_BYTES):
                for command in reader.feed(data):
                    self._take(command)
        except ConnectionError:
            pass  # the same as end-of-file: the actor is gone
        except Exception:
            logger.exception("cannot go on reading commands")
            os._exit(_EXIT_PROTOCOL_ERROR)
        os._exit(0)

    def _take(self, command: Command) -> None:
        match command:
            case Submit(request=request):
                self._inbox.put(Arrival(request))
            case AbortRequest(request_id=request_id):
                self._inbox.put(Abort(request_id))
            case LoadModel() | RemoveModel():
                self._shelf.order(command)
            case ChangeQuotas(call=call, quota_blocks=quota_blocks):
                self._inbox.put(SetQuotas(quota_blocks))
                self._sender.send(QuotasChanged(call, self._shelf.max_model_lens(quota_blocks)))
            case ChangePolicy(policy=policy) if policy in POLICIES:
                self._inbox.put(SetPolicy(policy))
            case ChangePolicy(policy=policy):
                logger.error("unknown dispatch policy %s: the one in force stays", policy)
            case Shutdown():
                self._inbox.put(Stop())


def main(arguments: Sequence[str]) -> None:
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the actor decides
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    connection = socket.socket(fileno=int(arguments[0]))
    settings = msgspec.json.decode(arguments[1], type=EngineSettings)
    sender = NoticeSender(connection)
    executor = build_executor(settings)

    def send_tokens(events: Sequence[TokenEvent]) -> None:
        sender.send(Tokens(tuple(events)))

    def send_load(report: LoadReport) -> None:
        sender.send(Load(report))

    watched = WatchedExecutor(executor, lambda model: shelf.on_detached(model))
    loop, inbox = build_engine(
        watched,
        policy=settings.policy,
        settings=settings.scheduler,
        latency=RooflineLatency(executor.device),
        outbox=send_tokens,
        on_load_report=send_load,
    )
    shelf = ModelShelf(executor, inbox, sender)
    sender.send(
        Started(
            device=executor.device.name,
            memory_bytes=settings.device_memory_bytes or executor.device.memory_bytes,
            block_bytes=executor.block_bytes,
            total_blocks=executor.total_blocks,
        )
    )
    CommandIntake(connection, inbox, shelf, sender).start()
    loop.run()
    sender.flush(_FLUSH_TIMEOUT_S)


def _die_with_parent() -> None:
    """The kernel kills this process when the thread that started it ends: no orphan, whatever the process is doing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
