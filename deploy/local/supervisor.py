"""Watches what a local fleet runs on, and sees to it that `muxfleet up` ends in bounded time, whatever it waits for."""

import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from deploy.errors import DeployError, FleetLost, FleetStartError
from deploy.local.cluster_parts import PartBack, PartEnded, PartsWatch, ProcessTree
from deploy.local.native_errors import silence_native_errors
from deploy.local.stop_signals import ASKED_TO_STOP, OWN_STOP, StopSignals
from pdmux_actor.serving.quiet_pace import QuietPace

_TICK_S = 0.25
_LOOK_EVERY_S, _QUIET_LOOK_EVERY_S = 1.0, 5.0  # a look goes through all processes of the machine
_AGAIN_S = 0.5  # a terminal that sends Ctrl-C twice at once means one
_LOST_S = 15.0  # to kill what is left of a cluster and remove its folder: no stream is left that might be cut
_GRACE_S = 3.0  # what runs out of time says so by itself if it can


class Supervisor:
    """A thread beside the main one, which may be inside a call that no signal reaches.

    `verdict` says why the main thread was interrupted; None: a person did it, or nothing has happened.
    """

    def __init__(self, *, stop_s: float, tell: Callable[[str], None]) -> None:
        self.verdict: DeployError | None = None
        self.is_lost = False
        self._stop_s = stop_s
        self._print = tell
        self._tree = ProcessTree()
        self._parts = PartsWatch()
        self._folder: Path | None = None
        self._stage = ""
        self._must_be_ready_s: float | None = None
        self._wait_s = 0.0
        self._ending_since_s: float | None = None
        self._looked_s = 0.0
        self._pace = QuietPace(busy_s=_LOOK_EVERY_S, quiet_s=_QUIET_LOOK_EVERY_S)
        self._stop_signals = StopSignals()
        self._signals, self._wakeup = socket.socketpair()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> None:
        for end in (self._signals, self._wakeup):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        self.heed_signals()
        self._thread.start()

    def heed_signals(self) -> None:
        """Signals stop the main thread from now on, also if others have set handlers of their own meanwhile."""
        self._stop_signals.heed()

    def close(self) -> None:
        """A process that has lost its cluster stays watched until its end: Ray may still wait for it there."""
        if self.is_lost:
            return
        self._closed.set()
        # no deadline: the thread waits for nothing but `_closed` and signals, a little while each time
        self._thread.join()
        self._tree.close()
        signal.set_wakeup_fd(-1)
        self._stop_signals.restore()
        self._signals.close()
        self._wakeup.close()

    def limit_start(self, wait_s: float) -> None:
        """Gives the fleet so long, from now on, until `now_serving`."""
        self._wait_s, self._must_be_ready_s = wait_s, time.monotonic() + wait_s + _GRACE_S

    def now_in(self, stage: str) -> None:
        self._stage = stage

    def now_serving(self) -> None:
        self._must_be_ready_s = None

    def watch(self, folder: Path) -> None:
        """The cluster of this process has come up; its session lies in `folder`."""
        self._folder = folder

    def now_ending(self) -> None:
        if self._ending_since_s is None:
            self._ending_since_s = time.monotonic()

    def kill_cluster(self) -> None:
        self._tree.kill()

    def _run(self) -> None:
        while not self._closed.wait(_TICK_S):
            self._tick(time.monotonic())

    def _tick(self, now_s: float) -> None:
        self._take_signals(now_s)
        if now_s - self._looked_s >= _LOOK_EVERY_S and self._is_look_due(now_s):
            self._looked_s = now_s
            self._look(now_s)
        if self._must_be_ready_s is not None and now_s > self._must_be_ready_s and self._ending_since_s is None:
            self._interrupt(
                FleetStartError(
                    reason=f"not ready after {self._wait_s:g} s ({self._stage})",
                    remedy="run again with -v for the logs, or allow more with --wait",
                )
            )
        stop_s = max(self._stop_s, _LOST_S) if self.is_lost else self._stop_s
        if self._ending_since_s is not None and now_s - self._ending_since_s > stop_s:
            self._end_by_force(f"stopping takes longer than {stop_s:g} s: ending all by force")

    def _take_signals(self, now_s: float) -> None:
        try:
            received = self._signals.recv(64)
        except BlockingIOError:
            return
        if not any(number in ASKED_TO_STOP for number in received):
            return
        if self._ending_since_s is None:
            self._ending_since_s = now_s
        elif now_s - self._ending_since_s > _AGAIN_S:
            self._end_by_force("interrupted again: ending all by force")

    def _is_look_due(self, now_s: float) -> bool:
        is_changing = self._must_be_ready_s is not None or self._ending_since_s is not None or self._parts.lacks_any
        return self._pace.is_due(now_s) or is_changing or self._tree.is_worth_a_look()

    def _look(self, now_s: float) -> None:
        processes = self._tree.look()  # also before and after: what is to be ended is known by that
        self._pace.note("processes", frozenset(processes), now_s)
        if self._folder is None or self._ending_since_s is not None:
            return
        for change in self._parts.look(_commands(processes), now_s):
            if isinstance(change, PartBack):
                self._tell(f"{change.part.name} runs again, after {change.after_s:.0f} s")
            elif change.part.is_vital:
                self.is_lost = True
                self._interrupt(FleetLost(part=change.part.name, pid=change.pid, meaning=change.meaning))
                return
            else:
                self._tell(f"{_ended(change)}: {change.meaning}; Serve starts another")

    def _tell(self, line: str) -> None:
        with suppress(OSError):  # of a terminal that was closed; what it would have shown is done all the same
            self._print(line)

    def _interrupt(self, verdict: DeployError) -> None:
        self.verdict = verdict
        self._ending_since_s = time.monotonic()
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, OWN_STOP)

    def _end_by_force(self, why: str) -> None:
        self._tell(why if self.verdict is None else f"{self.verdict}\n{why}")
        silence_native_errors()
        self._tree.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(1)


@contextmanager
def supervised(supervisor: Supervisor) -> Iterator[None]:
    """Raises the supervisor's verdict where that interrupted the block."""
    supervisor.start()
    try:
        yield
    except KeyboardInterrupt:
        if supervisor.verdict is None:
            raise
        raise supervisor.verdict from None
    else:
        if supervisor.verdict is not None:
            raise supervisor.verdict
    finally:
        supervisor.close()


def _commands(processes: Sequence[psutil.Process]) -> Mapping[int, str]:
    found = {}
    for process in processes:
        try:
            found[process.pid] = " ".join(process.cmdline())
        except psutil.Error:  # it has just ended
            continue
    return found


def _ended(change: PartEnded) -> str:
    return f"{change.part.name} (process {change.pid}) has ended"
