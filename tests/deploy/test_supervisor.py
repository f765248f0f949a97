"""The supervisor of a process that does not end by itself, in a process of its own."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from deploy.local.supervisor import Supervisor

PATIENCE_S = 60.0
STUBBORN = """
import subprocess, sys, time
from pathlib import Path
from deploy.local.supervisor import Supervisor, supervised
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
supervisor = Supervisor(stop_s={stop_s}, tell=lambda line: print(line, flush=True))
with supervised(supervisor):
    supervisor.watch(Path({folder!r}))
    supervisor.now_in("waiting for nothing")
    {before}
    print("child", child.pid, flush=True)
    while True:
        try:
            time.sleep(600)
        except KeyboardInterrupt:
            print("not yet", flush=True)
            {on_interrupt}
"""


class Stubborn:
    def __init__(
        self,
        folder: Path,
        *,
        stop_s: float = 0.5,
        before: str = "",
        on_interrupt: str = "pass",
        on_sigint: signal.Handlers | Callable[..., None] = signal.default_int_handler,
    ) -> None:
        program = STUBBORN.format(stop_s=stop_s, folder=str(folder), before=before, on_interrupt=on_interrupt)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, on_sigint),
        )
        assert self.process.stdout is not None
        self.child = psutil.Process(int(self.process.stdout.readline().split()[1]))
        time.sleep(1.5)  # until the supervisor has looked at its processes

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    session = tmp_path / "session"
    session.mkdir()
    return session


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted__main_thread_goes_on__all_is_ended_by_force(folder: Path, how: signal.Signals) -> None:
    program = Stubborn(folder)

    program.process.send_signal(how)
    code, out, _ = program.end()

    assert (code, folder.exists()) == (1, False)
    assert "not yet\nstopping takes longer than 0.5 s: ending all by force\n" in out
    assert not program.child.is_running()


def test_interrupted__terminal_is_gone__all_is_ended_by_force_all_the_same(folder: Path) -> None:
    program = Stubborn(folder, on_interrupt="import os; os.close(1)")  # what is told next raises OSError

    program.process.send_signal(signal.SIGINT)
    code, _, _ = program.end()

    assert (code, folder.exists()) == (1, False)
    assert not program.child.is_running()


def test_interrupted_twice__main_thread_goes_on__the_second_ends_it(folder: Path) -> None:
    program = Stubborn(folder, stop_s=PATIENCE_S * 10)

    program.process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    program.process.send_signal(signal.SIGINT)
    code, out, _ = program.end()

    assert (code, folder.exists()) == (1, False)
    assert "interrupted again: ending all by force\n" in out


def test_start__not_ready_in_time__says_what_it_waited_for(folder: Path) -> None:
    program = Stubborn(folder, before="supervisor.limit_start(-2.0)", on_interrupt="child.kill(); raise")

    code, _, err = program.end()

    assert code == 1
    assert "FleetStartError: the fleet did not start: not ready after -2 s (waiting for nothing)" in err


def test_vital_part_ends__main_thread_is_interrupted_with_the_verdict(folder: Path) -> None:
    sleeper = "[sys.executable, '-c', 'import time; time.sleep(600)', '/gcs/gcs_server']"
    vital = f"child.kill(); child = subprocess.Popen({sleeper})"
    program = Stubborn(folder, before=vital, on_interrupt="raise")

    program.child.kill()
    code, _, err = program.end()

    assert code == 1
    assert f"FleetLost: the fleet is lost: Ray's GCS (process {program.child.pid}) has ended" in err


def test_vital_part_ends__sigint_is_ignored__main_thread_is_interrupted_all_the_same(folder: Path) -> None:
    """As of what a script starts with `&`: `--restart` would else have to wait for an end by force."""
    sleeper = "[sys.executable, '-c', 'import time; time.sleep(600)', '/gcs/gcs_server']"
    vital = f"child.kill(); child = subprocess.Popen({sleeper})"
    program = Stubborn(folder, before=vital, on_interrupt="raise", on_sigint=signal.SIG_IGN)

    program.child.kill()
    code, _, err = program.end()

    assert code == 1
    assert f"FleetLost: the fleet is lost: Ray's GCS (process {program.child.pid}) has ended" in err


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_again_at_once__what_is_taken_down_is_taken_down(folder: Path, second: signal.Signals) -> None:
    """`timeout` tells a command and then its group; some terminals tell twice."""
    program = Stubborn(folder, stop_s=PATIENCE_S, on_interrupt="time.sleep(2.0); child.kill(); print('done'); break")

    program.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    program.process.send_signal(second)
    code, out, err = program.end()

    assert (code, out.endswith("done\n"), err) == (0, True, "")


class ScriptedTree:
    """Stands for the process tree: `running(now_s)` are command lines by process id."""

    def __init__(self, running: Callable[[float], Mapping[int, str]]) -> None:
        self.running = running
        self.now_s = 0.0
        self.seen: set[int] = set()
        self.looked_s: list[float] = []

    def look(self) -> Sequence[object]:
        self.looked_s.append(self.now_s)
        commands = self.running(self.now_s)
        self.seen = set(commands)
        return [ScriptedProcess(pid, command) for pid, command in commands.items()]

    def is_worth_a_look(self) -> bool:
        return not self.seen <= self.running(self.now_s).keys()


@dataclass(frozen=True)
class ScriptedProcess:
    pid: int
    command: str

    def cmdline(self) -> list[str]:
        return [self.command]


def minute_of(running: Callable[[float], Mapping[int, str]], folder: Path) -> tuple[ScriptedTree, list[str]]:
    """A supervisor's looks and words, tick by tick."""
    told: list[str] = []
    supervisor, tree = Supervisor(stop_s=1.0, tell=told.append), ScriptedTree(running)
    supervisor._signals.setblocking(False)
    supervisor._tree = tree
    supervisor.watch(folder)
    for tick in range(4, 240):
        tree.now_s = tick / 4
        supervisor._tick(tree.now_s)
    return tree, told


def test_look__nothing_changes__comes_rarely_after_a_while(folder: Path) -> None:
    tree, told = minute_of(lambda now_s: {1: "/raylet/raylet", 2: "ray::ServeController"}, folder)

    assert told == []
    gaps_s = [later - before for before, later in pairwise(tree.looked_s)]
    assert gaps_s[:9] == [1.0] * 9
    assert set(gaps_s[10:]) == {4.5}


def test_look__process_ends_in_a_quiet_fleet__is_seen_at_once_and_so_is_the_next_one(folder: Path) -> None:
    def running(now_s: float) -> Mapping[int, str]:
        serving = {2: "ray::ServeController"} if now_s < 31.1 else {3: "ray::ServeController"} if now_s > 45.1 else {}
        return {1: "/raylet/raylet", **serving}

    tree, told = minute_of(running, folder)

    assert told[0].startswith("Serve's controller (process 2) has ended: ")
    assert told[1:] == ["Serve's controller runs again, after 14 s"]
    assert min(s for s in tree.looked_s if s > 31.1) == 31.25


@pytest.mark.parametrize(
    ("later_s", "forced"), [(10.0, []), (20.0, ["stopping takes longer than 15 s: ending all by force"])]
)
def test_stop_wait__is_over_while_a_lost_cluster_is_killed__does_not_keep_the_fleet_from_a_restart(
    later_s: float, forced: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No stream is left to cut: `up --restart --stop-wait 1` ended, with 1, where it should have begun again."""
    told: list[str] = []
    supervisor = Supervisor(stop_s=1.0, tell=print)
    monkeypatch.setattr(supervisor, "_end_by_force", told.append)
    supervisor._signals.setblocking(False)
    supervisor._tree = ScriptedTree(lambda now_s: {})
    supervisor.is_lost = True
    supervisor.now_ending()

    supervisor._tick(time.monotonic() + later_s)

    assert told == forced
