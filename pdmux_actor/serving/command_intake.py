"""The thread of the engine process that reads what the actor says."""

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence, Set
from functools import partial

import msgspec

from pdmux_actor.engine import Inbox
from pdmux_actor.kv.prefix_kv import KeptRows, PrefixRows
from pdmux_actor.scheduling.decision import Decision, LogExcerpt
from pdmux_actor.scheduling.events import (
    Abort,
    Arrival,
    KeepPrefix,
    ReadDecisions,
    ReadPrefix,
    SetPolicy,
    SetQuotas,
    Stop,
)
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.serving.commands import (
    AbortRequest,
    CallFailed,
    ChangePolicy,
    Command,
    KeepPrefixCommand,
    LoadModelCommand,
    ReadDecisionsCommand,
    ReadPrefixCommand,
    RemoveModelCommand,
    ResizePoolCommand,
    SetQuotasCommand,
    Shutdown,
    Submit,
    TimeLaunch,
    answered,
)
from pdmux_actor.serving.frames import FrameReader
from pdmux_actor.serving.loaded_models import LoadedModels
from pdmux_actor.serving.notice_sender import NoticeSender
from pdmux_actor.serving.structured_requests import StructuredRequests

logger = logging.getLogger(__name__)

MAX_DECISIONS = 4096
MAX_REQUEST_IDS = 8  # of one decision: they would be nearly all of an answer, which is one message of a few MB
MOST_KV_BYTES = 4 * 1024 * 1024  # of a message: what the engine copies between two steps
_RECEIVE_BYTES = 256 * 1024
_EXIT_PROTOCOL_ERROR = 70  # EX_SOFTWARE of sysexits.h


class CommandIntake:
    """The thread that turns the actor's commands into the engine's events."""

    def __init__(
        self,
        connection: socket.socket,
        inbox: Inbox,
        loaded_models: LoadedModels,
        sender: NoticeSender,
        structured: StructuredRequests,
    ) -> None:
        self._connection = connection
        self._sender = sender
        self._inbox = inbox
        self._loaded_models = loaded_models
        self._structured = structured

    def start(self) -> None:
        threading.Thread(target=self._read, name="command-intake", daemon=True).start()

    def _read(self) -> None:
        reader: FrameReader[Command] = FrameReader(Command)
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
                form = request.sampling.structured_output
                if form is None:
                    self._inbox.put(Arrival(request))
                else:
                    self._structured.submit(request, form)
            case AbortRequest(request_id=request_id):
                if not self._structured.abort(request_id):
                    self._inbox.put(Abort(request_id))
            case LoadModelCommand() | RemoveModelCommand() | ResizePoolCommand():
                self._loaded_models.order(command)
            case SetQuotasCommand(call=call, quota_blocks=quota_blocks):
                self._inbox.put(SetQuotas(quota_blocks))
                self._sender.send(answered(call, self._loaded_models.max_model_lens(quota_blocks)))
            case ChangePolicy(policy=policy) if policy in POLICIES:
                self._inbox.put(SetPolicy(policy))
            case ChangePolicy(policy=policy):
                logger.error("unknown dispatch policy: the one in force stays", extra={"policy": policy})
            case ReadDecisionsCommand(last=last):
                last = max(0, min(last, MAX_DECISIONS))
                self._inbox.put(ReadDecisions(last, partial(self._tell_decisions, command)))
            case ReadPrefixCommand(prompt=prompt, first_row=first_row):
                self._inbox.put(ReadPrefix(prompt, first_row, MOST_KV_BYTES, partial(self._tell, command.call)))
            case KeepPrefixCommand(prompt=prompt, rows=rows):
                self._inbox.put(KeepPrefix(prompt, rows, partial(self._tell, command.call)))
            case TimeLaunch(call=call):
                self._sender.send(CallFailed(call, "this engine does not run SGLang"))
            case Shutdown():
                self._inbox.put(Stop())

    def _tell(self, call: int, found: PrefixRows | KeptRows | None) -> None:
        self._sender.send(answered(call, found))

    def _tell_decisions(self, command: ReadDecisionsCommand, now_s: float, decisions: Sequence[Decision]) -> None:
        if command.request_ids:
            told = _of_requests(decisions, frozenset(command.request_ids), since_s=now_s - command.within_s)
        else:
            told = tuple([_with_few_ids(decision) for decision in decisions])
        self._sender.send(answered(command.call, LogExcerpt(now_s=now_s, unix_s=time.time(), decisions=told)))


def _of_requests(decisions: Sequence[Decision], wanted: Set[str], *, since_s: float) -> tuple[Decision, ...]:
    """On the engine's thread: no more of the log is looked at than may be of these requests."""
    found: list[Decision] = []
    for decision in reversed(decisions):
        if decision.now_s < since_s:
            break
        if own := tuple([request_id for request_id in decision.request_ids if request_id in wanted]):
            found.append(msgspec.structs.replace(decision, request_ids=own))
    return tuple(reversed(found))


def _with_few_ids(decision: Decision) -> Decision:
    if len(decision.request_ids) <= MAX_REQUEST_IDS:
        return decision
    return msgspec.structs.replace(decision, request_ids=decision.request_ids[:MAX_REQUEST_IDS])
