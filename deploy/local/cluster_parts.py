"""Defines what a local fleet runs on beside its own replicas: which process is which part of Ray, what its end means,
and which processes they started.
"""

import os
import select
import threading
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import psutil

_ROUNDS = 5
_ROUND_S = 2.0


class ProcessEnds:
    """Tells whether one of many processes has ended, without a look at each: by Linux's file descriptors of processes.

    Not thread-safe. Where descriptors are missing or have run out, it cannot tell: `is_complete` is False then.
    """

    def __init__(self) -> None:
        self._descriptors: dict[psutil.Process, int] = {}
        self.is_complete = False

    def watch(self, processes: Set[psutil.Process]) -> None:
        """These from now on, and no others."""
        for process in self._descriptors.keys() - processes:
            os.close(self._descriptors.pop(process))
        self.is_complete = hasattr(os, "pidfd_open")
        for process in processes - self._descriptors.keys() if self.is_complete else ():
            try:
                self._descriptors[process] = os.pidfd_open(process.pid)
            except OSError:
                self.is_complete = False

    def any_has(self) -> bool:
        if not self._descriptors:
            return False
        poll = select.poll()
        for descriptor in self._descriptors.values():
            poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self.watch(set())


class ProcessTree:
    """Also those whose parent has ended meanwhile, if `look` saw them before."""

    def __init__(self) -> None:
        self._root = psutil.Process()
        self._seen: set[psutil.Process] = set()
        self._ends = ProcessEnds()
        self._lock = threading.Lock()

    def look(self) -> Sequence[psutil.Process]:
        """Returns the processes that run now. A process that has ended and waits for its parent to take note does not
        run.
        """
        with self._lock:
            self._seen.update(self._root.children(recursive=True))
            self._seen = {p for p in self._seen if _runs(p)}
            self._ends.watch(self._seen)
            return tuple(self._seen)

    def is_worth_a_look(self) -> bool:
        """Says whether one of those that ran at the last look has ended, which costs a hundredth of a look; or whether
        that cannot be known.
        """
        with self._lock:
            return not self._ends.is_complete or self._ends.any_has()

    def close(self) -> None:
        """Nobody will ask any more."""
        with self._lock:
            self._ends.close()

    def kill(self) -> None:
        """Returns when none is left, or after some seconds. They may start others meanwhile: hence the rounds."""
        for _ in range(_ROUNDS):
            running = self.look()
            if not running:
                return
            for process in running:
                try:
                    process.kill()
                except psutil.Error:  # it has ended by itself
                    continue
            psutil.wait_procs(running, timeout=_ROUND_S)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`mark` is in its command line. A fleet does not outlive a vital part; Serve replaces the others. `behind` is the
    mark of the part that takes its traffic where there is one.
    """

    name: str
    mark: str
    is_vital: bool
    meaning: str
    behind: str | None = None


PARTS = (
    Part(
        name="Ray's GCS",
        mark="/gcs/gcs_server",
        is_vital=True,
        meaning="no process of the cluster can be started or found any more",
    ),
    Part(
        name="Ray's dashboard agent",
        mark="ray::DashboardAgent",
        is_vital=True,
        meaning="the raylet ends with it, and with that all units and gateways",
    ),
    Part(
        name="Ray's runtime environment agent",
        mark="ray::RuntimeEnvAgent",
        is_vital=True,
        meaning="the raylet ends with it, and with that all units and gateways",
    ),
    Part(name="Ray's raylet", mark="/raylet/raylet", is_vital=True, meaning="all units and gateways end with it"),
    Part(
        name="Serve's controller",
        mark="ray::ServeController",
        is_vital=False,
        meaning="requests are served; what dies meanwhile is replaced when it is back",
    ),
    Part(
        name="Serve's proxy",
        mark="ray::ProxyActor",
        is_vital=False,
        meaning="streams through it broke, clients must ask again",
        behind="ray::HAProxyManager",
    ),
    Part(
        name="Serve's HAProxy manager",
        mark="ray::HAProxyManager",
        is_vital=False,
        meaning="streams through it broke, clients must ask again",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartEnded:
    part: Part
    pid: int
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartBack:
    part: Part
    after_s: float


class PartsWatch:
    """Compares one look at the cluster's processes with the next."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._ended_s: dict[str, float] = {}

    @property
    def lacks_any(self) -> bool:
        """Says whether one has ended and is not back."""
        return bool(self._ended_s)

    def look(self, commands: Mapping[int, str], now_s: float) -> Sequence[PartEnded | PartBack]:
        """`commands`: command lines of what runs now, by process id. Vital parts come first, the cause before what it
        takes along.
        """
        changes: list[PartEnded | PartBack] = []
        for part in PARTS:
            running = sorted(pid for pid, command in commands.items() if part.mark in command)
            before = self._pids.get(part.name)
            if before is not None and before not in running:
                spared = part.behind is not None and any(part.behind in command for command in commands.values())
                meaning = "requests go through HAProxy, none is lost" if spared else part.meaning
                changes.append(PartEnded(part=part, pid=before, meaning=meaning))
                self._ended_s.setdefault(part.name, now_s)
                del self._pids[part.name]
            if running and part.name not in self._pids:
                self._pids[part.name] = running[0]
                if (ended_s := self._ended_s.pop(part.name, None)) is not None:
                    changes.append(PartBack(part=part, after_s=now_s - ended_s))
        return changes
