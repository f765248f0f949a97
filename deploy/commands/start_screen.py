"""Shows what happens until a fleet serves: a line that lives on a terminal, a line per stage elsewhere."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType

import psutil
from rich.console import Console
from rich.status import Status

from deploy.commands.table_cells import load_bar
from deploy.control.fleet_status import ModelState

_STILL_EVERY_S = 15.0
_LOOK_EVERY_S = 1.0


class ModelLines:
    """A line for every phase that a model reaches, and its problem once: a unit that tries again has the same one."""

    def __init__(self, console: Console, began_s: float | None = None) -> None:
        self._console = console
        self._began_s = time.monotonic() if began_s is None else began_s
        self._phases: dict[str, str] = {}
        self._problems: set[tuple[str, str]] = set()

    def show(self, model: ModelState) -> None:
        if not model.phases and model.problem is None and not model.is_asleep:
            return  # no unit has taken it up yet
        is_known = model.problem is not None and (model.model, model.problem) in self._problems
        phase = (
            "ready" if model.is_ready else ", ".join(model.phases) or ("asleep" if model.is_asleep else "not placed")
        )
        if is_known or (model.problem is None and self._phases.get(model.model) == phase):
            return  # another of its units got as far, or it is tried again
        self._phases[model.model] = phase
        self._console.print(f"  {time.monotonic() - self._began_s:5.1f} s  {model.model}: {phase}")
        if model.problem is not None:
            self._problems.add((model.model, model.problem))
            self._console.print(f"           {' '.join(model.problem.split())}", style="yellow", soft_wrap=True)


class StartScreen:
    """`on_stage` is told each new stage."""

    def __init__(self, console: Console, began_s: float, on_stage: Callable[[str], None]) -> None:
        self._console = console
        self._began_s = began_s
        self._on_stage = on_stage
        self._models = ModelLines(console, began_s)
        self._stage = ""
        self._said_s = began_s
        self._looked_s = began_s
        self._progress = ""
        self._status = Status("", console=console) if console.is_terminal else None

    def __enter__(self) -> None:
        if self._status is not None:
            self._status.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()

    def announce(self, what: str) -> None:
        """The first words of a stage."""
        self._console.print(what, soft_wrap=True)
        self._on_stage(what)
        if self._status is not None:
            self._status.update(what)

    def line(self, text: str) -> None:
        self._said_s = time.monotonic()
        self._console.print(f"  {self._elapsed()}  {text}", soft_wrap=True)

    def model(self, state: ModelState) -> None:
        self._said_s = time.monotonic()
        self._models.show(state)

    def note_progress(self, models: Sequence[ModelState]) -> None:
        """Told with the stage from now on."""
        bars = [f"{m.model} {load_bar(m.progress)}" for m in models if m.progress is not None and not m.is_ready]
        self._progress = "".join(f"; {bar}" for bar in bars)

    def stage(self, text: str) -> None:
        """May be called as often as one likes."""
        now_s = time.monotonic()
        is_new, self._stage = text != self._stage, text
        if is_new:
            self._on_stage(text)
        if self._status is None:
            if is_new:
                self.line(text)
            elif now_s - self._said_s > _STILL_EVERY_S:
                self.line(f"still {text}{self._progress}")
        elif is_new or now_s - self._looked_s > _LOOK_EVERY_S:
            self._looked_s = now_s
            self._status.update(f"{self._elapsed()}  {text}{self._progress}{_held()}")

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._began_s:5.1f} s"


def _held() -> str:
    held_bytes = engine_memory_bytes()
    return f"  (engine processes hold {held_bytes / 1e9:.1f} GB)" if held_bytes else ""


_MARKS = ("pdmux_actor.serving.process", "pdmux_actor.backends.sglang.process", "sglang::")


def engine_memory_bytes() -> int:
    """Host memory only: weights on their way to a GPU pass through it."""
    held_bytes = 0
    for process in psutil.Process().children(recursive=True):
        try:
            command = " ".join(process.cmdline())
            if any(mark in command for mark in _MARKS):
                held_bytes += process.memory_info().rss
        except psutil.Error:  # it has just ended
            continue
    return held_bytes
