"""Workers of pytest-xdist as forks of one process that has imported the tests and what they import: each would do so
for itself, which is four fifths of what a worker computes before its first test.

Run as a program, it stands for a worker: execnet starts it, and its standard streams become a fork's.
"""

import atexit
import gc
import os
import select
import shlex
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest
    from execnet import XSpec

_STREAMS = (0, 1, 2)


def fork_workers(session: "pytest.Session", specs: "Sequence[XSpec]") -> None:
    """Lets execnet start forks. It starts threads with the first of them, so they are not forks of this process: what
    they are forked from is, and ends with it.
    """
    address = str(Path(mkdtemp(prefix="muxfleet-workers-"), "socket"))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(len(specs))
    alive, keep_alive = os.pipe()
    origin = os.fork()
    if origin == 0:
        try:
            os.close(keep_alive)
            _import_tests(session)
            _fork_on_demand(listener, alive, address)
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(0)
    listener.close()
    os.close(alive)

    def end() -> None:
        os.close(keep_alive)
        os.waitpid(origin, 0)

    session.config.add_cleanup(end)
    for spec in specs:
        spec.python = shlex.join((sys.executable, "-S", __file__, address))


def _import_tests(session: "pytest.Session") -> None:
    """Without threads, which forks would lack: tokenizers start some unless they are told not to."""
    from unittest import mock  # what stands for workers needs none of it

    import pytest

    plugins = session.config.pluginmanager
    plugins.unregister(name="terminalreporter")  # workers' reports are told
    capturing = plugins.unregister(name="capturemanager")
    capturing.stop_global_capturing()  # what is imported would keep its streams, which are this process's
    errors, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    gc.disable()
    told_to = mock.patch.dict(os.environ, TOKENIZERS_PARALLELISM="false")
    try:
        with told_to, suppress(pytest.UsageError):  # each worker meets it, too, and tells it
            session.perform_collect()
    finally:
        os.dup2(errors, 2)
    session.items.clear()
    gc.freeze()
    gc.enable()


def _fork_on_demand(listener: socket.socket, alive: int, address: str) -> None:
    while listener in select.select([listener, alive], [], [])[0]:
        worker, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _be_worker(worker)
        worker.close()
    with suppress(ChildProcessError):
        while os.wait():
            pass
    os.remove(address)
    os.rmdir(os.path.dirname(address))


def _be_worker(standing_for_it: socket.socket) -> None:
    """Does what `python -c` does with the line that execnet gives it, in a `__main__` as new as there."""
    _, streams, _, _ = socket.recv_fds(standing_for_it, 1, len(_STREAMS))
    for stream, place in zip(streams, _STREAMS, strict=True):
        os.dup2(stream, place)
        os.close(stream)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", 1, closefd=False)  # noqa: SIM115  # this process's
    sys.modules["__main__"] = main = ModuleType("__main__")
    try:
        exec(eval(sys.stdin.readline()), vars(main))
    finally:
        atexit._run_exitfuncs()
        os._exit(0)


def _stand_for_worker(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as worker:
        worker.connect(address)
        socket.send_fds(worker, [b"."], _STREAMS)
        for stream in _STREAMS[:2]:  # whoever waits for the worker's end sees it there
            os.close(stream)
        worker.recv(1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the worker, which is told, too
    _stand_for_worker(sys.argv[1])
