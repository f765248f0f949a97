"""Starts the processes of a system and ends them, with everything they started."""

import contextlib
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psutil
from peer_systems.systems import Serving

START_S = 600.0
_STOP_S = 60.0
_MARK = "MUXFLEET_PEERS_BLOCK"


class DidNotServe(Exception):
    """A system ended, or was not ready in time; its log says why."""


class ServingWatch(Protocol):
    """Told just before processes start, and just before they are stopped."""

    def starting(self) -> None: ...

    def stopping(self) -> None: ...


@contextmanager
def serving(servings: Sequence[Serving], log: Path, watch: ServingWatch) -> Iterator[float]:
    """While all of them answer; yields the seconds from the commands to the last one's first answer.

    Raises:
        DidNotServe: one of them does not.
    """
    watch.starting()
    started_s, processes = time.monotonic(), []
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("a", encoding="utf-8") as lines:
            for one in servings:
                environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
                environment |= {**one.environment, _MARK: "1"}
                processes.append(
                    subprocess.Popen(
                        ["taskset", "-c", ",".join(map(str, one.cores)), *one.command],
                        env=environment,
                        cwd=one.folder,
                        stdout=lines,
                        stderr=lines,
                        start_new_session=True,
                    )
                )
            for one, process in zip(servings, processes, strict=True):
                _wait_until_ready(one, process, started_s + START_S, log)
            yield time.monotonic() - started_s
            watch.stopping()
    finally:
        for process in processes:
            _stop(process)


def marked_cpu_s() -> dict[int, tuple[float, float]]:
    """CPU seconds so far of each process that a block started, and of its children that ended and that it waited for,
    by process id. Processes that left its session are among them, and so are those whose title has overwritten their
    environment, as vLLM's.
    """
    found = {}
    for process in {p for one in _marked() for p in (one, *_descendants(one))}:
        with contextlib.suppress(psutil.Error, OSError):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system, times.children_user + times.children_system
    return found


def _marked() -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(_MARK):
                yield process


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error, OSError):
        return process.children(recursive=True)
    return []


def _wait_until_ready(one: Serving, process: subprocess.Popen[bytes], until_s: float, log: Path) -> None:
    while time.monotonic() < until_s:
        if process.poll() is not None:
            raise DidNotServe(f"{one.command[0]} ended with {process.returncode}; {log} says why")
        with contextlib.suppress(OSError):
            for model in one.models:
                _ask(one.port, model)
            return
        time.sleep(1.0)
    raise DidNotServe(f"{one.command[0]} has not answered within {START_S:.0f} s; {log} says why")


def _ask(port: int, model: str) -> None:
    """A first request: what a system makes ready at its first is no part of what is measured."""
    body = f'{{"model": "{model}", "prompt": [5, 6, 7, 8], "max_tokens": 2, "temperature": 0}}'.encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"content-type": "application/json"}
    )
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with directly.open(request, timeout=120) as answer:
        answer.read()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-C, then by force; what left its session is found by the mark that it inherited."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pid in marked_cpu_s():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


_LOOK_S = 2.0  # some 15 ms each


class MachineWatch:
    """Implements blocks.ForeignLoad and serving.ServingWatch. What processes take to end is seen by nobody: they can be
    counted only while they are there, and in a next start's time it would be others'.
    """

    def __init__(self) -> None:
        self._started_s, self._busy_s, self._own_s = 0.0, 0.0, 0.0
        self._seen: dict[int, float] = {}  # by process, those that have ended too
        self._over = threading.Event()
        self.begin()

    def begin(self) -> None:
        self._most_cores = 0.0

    def starting(self) -> None:
        self._started_s, self._busy_s, self._own_s = time.monotonic(), _busy_s(), _own_cpu_s()
        self._over.set()  # of a start that came to nothing
        self._seen, self._over = {}, threading.Event()
        threading.Thread(target=self._look_now_and_then, args=(self._over,), daemon=True).start()

    def look(self) -> float:
        """Returns what the processes have used. Ray's workers end while others run, and nobody waits for them: what
        they had used is known from the last look.
        """
        now = marked_cpu_s()
        self._seen |= {pid: own_s for pid, (own_s, _) in now.items()}
        return max(sum(map(sum, now.values())), sum(self._seen.values()))

    def stopping(self) -> None:
        self._over.set()
        own_s = self.look() + _own_cpu_s() - self._own_s
        elapsed_s = time.monotonic() - self._started_s
        self._most_cores = max(self._most_cores, (_busy_s() - self._busy_s - own_s) / elapsed_s)

    def cores(self) -> float:
        return self._most_cores

    def _look_now_and_then(self, over: threading.Event) -> None:
        while not over.wait(_LOOK_S):
            self.look()


def _busy_s() -> float:
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq + times.steal


def _own_cpu_s() -> float:
    """This process and the clients that it has waited for."""
    return sum(os.times()[:4])
