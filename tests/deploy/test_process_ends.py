"""Ends of processes, told by the kernel."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from deploy.local.cluster_parts import ProcessEnds

PATIENCE_S = 30.0

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system has no descriptors of processes")


@pytest.fixture
def children() -> list[subprocess.Popen[bytes]]:
    started = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(2)]
    yield started
    for child in started:
        child.kill()
        child.wait(PATIENCE_S)


def test_ends__one_of_two_is_killed__is_told_until_it_is_watched_no_more(
    children: list[subprocess.Popen[bytes]],
) -> None:
    first, second = (psutil.Process(child.pid) for child in children)
    ends = ProcessEnds()
    ends.watch({first, second})
    assert (ends.is_complete, ends.any_has()) == (True, False)

    children[0].kill()
    deadline_s = time.monotonic() + PATIENCE_S
    while not ends.any_has() and time.monotonic() < deadline_s:
        time.sleep(0.01)

    assert ends.any_has()
    ends.watch({second})
    assert (ends.is_complete, ends.any_has()) == (True, False)
    ends.close()


def test_ends__no_descriptor_for_one__is_not_complete(
    children: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.pidfd_open

    def runs_out(pid: int) -> int:
        if pid == children[1].pid:
            raise OSError(24, "Too many open files")
        return opened(pid)

    monkeypatch.setattr(os, "pidfd_open", runs_out)
    ends = ProcessEnds()
    ends.watch({psutil.Process(child.pid) for child in children})

    assert (ends.is_complete, ends.any_has()) == (False, False)
    ends.close()
