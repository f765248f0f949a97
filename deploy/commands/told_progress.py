"""Tells how far long work is: by a bar on a terminal, elsewhere by a plain line on standard error now and then."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.progress import Progress, ProgressColumn

_EVERY_S = 10.0


class ToldProgress(Progress):
    def __init__(self, *columns: ProgressColumn, console: Console, transient: bool = False) -> None:
        super().__init__(*columns, console=console, disable=not console.is_terminal, transient=transient)
        self._lines = ProgressLines(self.line)

    def start(self) -> None:
        super().start()
        if self.disable:
            self._lines.start()

    def stop(self) -> None:
        self._lines.stop()
        super().stop()

    def line(self) -> str:
        """Returns what there is to say where no bar is drawn."""
        return ", ".join(
            task.description + ("" if task.total is None else f": {task.completed:.0f} of {task.total:.0f}")
            for task in self.tasks
        )


class ProgressLines:
    """Writes what `line` returns from a thread of its own, beside work that may hold the main one for minutes."""

    def __init__(self, line: Callable[[], str]) -> None:
        self._line = line
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            # no deadline: it waits for nothing but `_ended`, and for whoever reads standard error
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        began_s = time.monotonic()
        while not self._ended.wait(_EVERY_S):
            if sys.stderr is not None:
                with suppress(OSError, ValueError):  # who reads it may have left: the work goes on
                    sys.stderr.write(f"{self._line()} ({time.monotonic() - began_s:.0f} s)\n")
                    sys.stderr.flush()


@contextmanager
def told_work(console: Console, about: str) -> Iterator[None]:
    """Says that work of unknown length goes on."""
    if console.is_terminal:
        with console.status(about):
            yield
        return
    lines = ProgressLines(lambda: about)
    lines.start()
    try:
        yield
    finally:
        lines.stop()
