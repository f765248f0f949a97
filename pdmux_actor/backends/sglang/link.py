"""Defines what an engine process and the plugin inside SGLang's scheduler tell each other: msgpack frames on a Unix
socket.
"""

import socket
from collections.abc import Iterator

import msgspec

from pdmux_actor.backends.sglang.snapshot import DecisionRecord
from pdmux_actor.messages import StepTotals
from pdmux_actor.scheduling.decision import Decision
from pdmux_actor.serving.frames import FrameReader, framed

_RECEIVE_BYTES = 64 * 1024


class PluginHello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message. `missing` names hooks that did not take hold; `groups` are (prefill, decode) SMs."""

    missing: tuple[str, ...]
    groups: tuple[tuple[int, int], ...]
    total_tokens: int
    context_tokens: int


class PluginLoad(msgspec.Struct, frozen=True, tag="load"):
    """A few times a second. Totals count since the start; decode times are means over the last seconds, 0 without."""

    running: int
    waiting: int
    used_tokens: int
    cached_tokens: int
    prefill_sms: int
    decode_sms: int
    steps_total: int
    repartitions_total: int
    preemptions_total: int
    waiting_tokens: int
    decode_predicted_s: float
    decode_achieved_s: float
    prefill_base_s: float
    prefill_s_per_token: float
    guard_cells_moved_total: int
    steps: tuple[StepTotals, ...] = ()


class DecisionsTold(msgspec.Struct, frozen=True, tag="decisions"):
    call: int
    now_s: float
    decisions: tuple[Decision, ...]


class RecordsTold(msgspec.Struct, frozen=True, tag="records"):
    call: int
    records: tuple[DecisionRecord, ...]


class LaunchTook(msgspec.Struct, frozen=True, tag="launch_took"):
    """The answer to the RPC that times a launch (hooks.py)."""

    call: int
    seconds: float


class GuardKept(msgspec.Struct, frozen=True, tag="guard_kept"):
    call: int


class TellDecisions(msgspec.Struct, frozen=True, tag="tell_decisions"):
    call: int
    last: int


class TellRecords(msgspec.Struct, frozen=True, tag="tell_records"):
    """The snapshots and directives since recording began (PluginConfig.records)."""

    call: int


class KeepGuard(msgspec.Struct, frozen=True, tag="keep_guard"):
    """The engine is about to end (PluginConfig.guard)."""

    call: int


class UsePolicy(msgspec.Struct, frozen=True, tag="policy"):
    policy: str


FromPlugin = PluginHello | PluginLoad | DecisionsTold | RecordsTold | LaunchTook | GuardKept
ToPlugin = TellDecisions | TellRecords | KeepGuard | UsePolicy


class SchedulerLink:
    """The plugin's end. Polled by the scheduler's loop; never makes it wait for a message."""

    def __init__(self, path: str) -> None:
        """Raises OSError: the engine process does not listen there."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._messages: FrameReader[ToPlugin] = FrameReader(ToPlugin)

    def send(self, message: FromPlugin) -> None:
        """Waits only while the engine process lets hundreds of messages lie."""
        self._socket.sendall(framed(message))

    def close(self) -> None:
        self._socket.close()

    def poll(self) -> Iterator[ToPlugin]:
        while True:
            try:
                data = self._socket.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if not data:
                return  # the engine process is gone; SGLang ends with it
            yield from self._messages.feed(data)
