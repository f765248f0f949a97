"""Ends a command whose fleet ends: Ray's client waits a minute for a cluster that is gone, and then ends the process
among lines of its own.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from deploy.errors import FleetEnded
from deploy.local.native_errors import silence_native_errors
from deploy.local.running_fleets import RunningFleet, running_fleets
from deploy.local.stop_signals import OWN_STOP

_LOOK_EVERY_S = 0.5
_MISSES = 2  # a note may fail to be read
_GRACE_S = 3.0  # what is taken down may wait for the cluster, too


@contextmanager
def ending_with(fleet: RunningFleet, folder: Path) -> Iterator[None]:
    """`folder` is where it is noted until it stops.

    Raises FleetEnded, in whatever the main thread waits for.
    """
    ended, is_over, ending = FleetEnded(name=fleet.name), threading.Event(), threading.Lock()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not is_over.is_set():
            raise ended

    def watch() -> None:
        missed = 0
        while not is_over.wait(_LOOK_EVERY_S):
            missed = 0 if fleet in running_fleets(folder) else missed + 1
            if missed == _MISSES:
                main = threading.main_thread().ident
                assert main is not None
                with ending:
                    if is_over.is_set():
                        return
                    silence_native_errors()
                    signal.pthread_kill(main, OWN_STOP)
                break
        else:
            return
        if not is_over.wait(_GRACE_S):
            with suppress(OSError):
                sys.stderr.write(f"muxfleet: {ended}\n")
            os._exit(ended.exit_code)

    before = signal.signal(OWN_STOP, interrupt)
    threading.Thread(target=watch, name="fleet-end", daemon=True).start()
    try:
        yield
    finally:
        with ending:
            is_over.set()
        signal.signal(OWN_STOP, before)
