"""A fleet in a process of its own, started and stopped as a user does."""

import ipaddress
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

START_S = 240.0
STOP_S, STOP_WAIT_S = 90.0, 60.0  # a busy machine is no reason to end by force
RECOVER_S = 180.0
RUNNING_S = 60.0


def _heed_signals() -> None:
    """A shell that runs the tests in the background has its children ignore SIGINT, and nohup SIGHUP: theirs inherit
    that.
    """
    for signal_ in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signal_, signal.SIG_DFL)


def _running_by_any_gateway(exposition: str) -> float | None:
    """Sequences of all models. Each gateway tells what units told it: they are the same sequences."""
    told: dict[str, float] = {}
    pattern = r"^muxfleet_num_requests_running\{(.*)\} ([0-9.]+)$"
    for labels, value in re.findall(pattern, exposition, flags=re.MULTILINE):
        others = re.sub(r'gateway="[^"]*",?', "", labels).strip(",")
        told[others] = max(told.get(others, 0.0), float(value))
    return sum(told.values()) if told else None


class FleetProcess:
    """`muxfleet up FILE` under a session of its own. `stop` is Ctrl-C."""

    def __init__(
        self,
        fleet_file: Path,
        environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        prefix: Sequence[str] = (),
        start_s: float = START_S,
    ) -> None:
        """It runs in the folder of the file. `environment`: RAY_ADDRESS, for a cluster that is already there. `options`
        go to `muxfleet up`. `prefix`: a program that executes what follows it. `start_s`: until it must serve.
        """
        self.file = fleet_file
        self._start_s = start_s
        clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | dict(environment or {})
        patience = ("--wait", str(start_s), "--stop-wait", str(STOP_WAIT_S))
        self._process = subprocess.Popen(
            [*prefix, *self.command("up", str(fleet_file), *patience, *options)],
            cwd=fleet_file.parent,
            env=clean,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_heed_signals,
        )
        self.lines: list[str] = []
        self._new_lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._seen: set[psutil.Process] = set()
        self.url = ""

    def wait_until_serving(self) -> None:
        until_s = time.monotonic() + self._start_s
        line, self.url = "", ""
        while not (self.url and line.startswith("curl ")):  # the last line that it prints
            try:
                new_line = self._new_lines.get(timeout=max(0.1, until_s - time.monotonic()))
            except queue.Empty:
                last_lines = "".join(self.lines[-5:])
                raise AssertionError(f"it does not serve after {self._start_s:g} s: {last_lines}") from None
            assert new_line is not None, f"the fleet ended:\n{self.output}"
            line = new_line
            if match := re.search(r"serving at (http://\S+)", line):
                self.url = match.group(1)
        self.processes()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def wait_for_line(self, words: str) -> str:
        """The first new line with these words."""
        until_s = time.monotonic() + self._start_s
        while True:
            line = self._new_lines.get(timeout=max(0.1, until_s - time.monotonic()))
            assert line is not None, f"the fleet ended:\n{self.output}"
            if words in line:
                return line

    def session_folder(self) -> Path:
        """Where its Ray session lies."""
        (folder,) = set(re.findall(r"(/tmp/muxfleet-\w+)/", command_line(self.process(title="/raylet/raylet"))))
        return Path(folder)

    def listening(self) -> dict[str, str]:
        """By address, the process that listens there."""
        found = {}
        for process in [psutil.Process(self._process.pid), *self.processes()]:
            for connection in process.net_connections(kind="inet"):
                if connection.status == psutil.CONN_LISTEN:
                    found[f"{connection.laddr.ip} {connection.laddr.port}"] = command_line(process)
        return found

    def wait_until_ended(self) -> int:
        """By itself; the exit code."""
        code = self._process.wait(STOP_S)
        self._reader.join(10)
        return code

    def command(self, *arguments: str) -> list[str]:
        """For another `muxfleet` process; where only the tree is there, by its module."""
        installed = Path(sys.executable).parent / "muxfleet"
        program = [str(installed)] if installed.exists() else [sys.executable, "-m", "muxfleet.command_line"]
        return [*program, *arguments]

    def processes(self) -> list[psutil.Process]:
        """Everything that the fleet runs on now."""
        found = psutil.Process(self._process.pid).children(recursive=True)
        self._seen.update(found)
        return found

    def process(self, *, title: str) -> psutil.Process:
        """The only one whose command line holds `title`."""
        (found,) = [p for p in self.processes() if title in command_line(p)]
        return found

    def engine(self) -> psutil.Process:
        return self.process(title="pdmux_actor.serving.process")

    def actor(self) -> psutil.Process:
        return self.engine().parent() or self._fail("the engine has no parent")

    def controller(self) -> psutil.Process:
        return self.process(title="ServeReplica:control:Controller")

    def statuses(self) -> dict[str, str]:
        entries = httpx.get(f"{self.url}/v1/models", timeout=30, trust_env=False).json()["data"]
        return {e["id"]: e["status"] for e in entries}

    def wait_until_replaced(self, old: psutil.Process, find: Callable[[], psutil.Process]) -> None:
        """Until there is another process in `old`'s place and every model is ready."""
        until_s = time.monotonic() + RECOVER_S
        while time.monotonic() < until_s:
            try:
                if find().pid != old.pid and set(self.statuses().values()) == {"ready"}:
                    return
            except (ValueError, psutil.NoSuchProcess, httpx.HTTPError):
                pass  # it is between two lives
            time.sleep(0.2)
        self._fail(f"{old} was not replaced in {RECOVER_S:g} s")

    def answers(self) -> float:
        """How many generations have finished, at all gateways."""
        text = httpx.get(f"{self.url}/metrics", timeout=30, trust_env=False).text
        found = re.findall(r"^muxfleet_answers_total(?:\{.*\})? ([0-9.e+]+)$", text, flags=re.MULTILINE)
        return sum(map(float, found))

    def wait_for_running(self, count: int) -> None:
        """Until the units report so many running sequences."""
        until_s = time.monotonic() + RUNNING_S
        running = None
        while time.monotonic() < until_s:
            text = httpx.get(f"{self.url}/metrics", timeout=30, trust_env=False).text
            running = _running_by_any_gateway(text)
            if running == count:
                return
            time.sleep(0.1)
        self._fail(f"{running} sequences are running after {RUNNING_S:g} s, not {count}")

    def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        """Ctrl-C, SIGTERM or, with SIGHUP, a closed terminal, which tells all that it runs; returns the exit code when
        nothing is left running.
        """
        self.processes()
        tell = os.killpg if how is signal.SIGHUP else os.kill
        tell(self._process.pid, how)
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the fleet did not stop in {STOP_S:g} s:\n{self.output}") from None
        self._reader.join(10)
        _, alive = psutil.wait_procs(list(self._seen), timeout=15)
        left = [command_line(p) for p in alive]
        self.kill()
        assert not left, f"left running: {left}; the fleet ended with {code}; its output:\n{self.output}"
        return code

    def assert_stops_well(self, how: signal.Signals = signal.SIGINT) -> None:
        code = self.stop(how)
        assert code == 0, f"told to end by {how.name}, the fleet ended with {code}; its output:\n{self.output}"

    def kill(self) -> None:
        """Whatever state it is in."""
        if self._process.poll() is None:
            self.processes()
            self._process.kill()
            self._process.wait(10)
        for process in self._seen:
            if process.is_running():  # false for another process that has its number now
                process.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
            self._new_lines.put(line)
        self._new_lines.put(None)

    def _fail(self, reason: str) -> psutil.Process:
        raise AssertionError(f"{reason}; its output:\n{self.output}")


@contextmanager
def running_fleet(
    file: Path, *, environment: Mapping[str, str] | None = None, stop: signal.Signals = signal.SIGINT
) -> Iterator[FleetProcess]:
    """A fleet that serves; afterwards it must end well when told to by `stop`."""
    process = FleetProcess(file, environment)
    try:
        process.wait_until_serving()
        yield process
        process.assert_stops_well(stop)
    finally:
        process.kill()


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def assert_all_on_loopback(fleet: FleetProcess) -> None:
    listening = fleet.listening()
    assert listening
    open_to_others = {
        address: command
        for address, command in listening.items()
        if not ipaddress.ip_address(address.split()[0].removeprefix("::ffff:")).is_loopback
    }
    assert not open_to_others
