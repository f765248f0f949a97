"""What stops `muxfleet up` and `muxfleet demo`."""

import errno
import io
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from deploy.commands.fleet_screen import serve_until_interrupted
from deploy.fleet_file.settings import parse_fleet_file
from deploy.local.stop_signals import terminable


@pytest.fixture
def hangup() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_terminable__asked_to_end__stops_as_ctrl_c_does(hangup: None, how: signal.Signals) -> None:
    signal.signal(signal.SIGHUP, lambda number, frame: None)  # what was there, and is again afterwards
    before = signal.getsignal(how)

    with pytest.raises(KeyboardInterrupt), terminable():
        os.kill(os.getpid(), how)

    assert signal.getsignal(how) is before


def test_terminable__hangup_ignored__goes_on(hangup: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does

    with terminable():
        os.kill(os.getpid(), signal.SIGHUP)


class Terminal(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False

    def write(self, text: str) -> int:
        if self.is_closed:
            raise OSError(errno.EIO, "Input/output error")  # as one that is gone does
        return super().write(text)


def test_serving__terminal_closed__ends_as_on_ctrl_c(hangup: None) -> None:
    signal.signal(signal.SIGHUP, lambda number, frame: None)
    fleet = parse_fleet_file("models: [{id: m, source: x}]\npools: [{name: p, device: cpu}]", name="f", base=Path())
    terminal = Terminal()

    def close() -> None:
        terminal.is_closed = True
        os.kill(os.getpid(), signal.SIGHUP)

    threading.Timer(0.2, close).start()
    with terminable():
        serve_until_interrupted(Console(file=terminal), SimpleNamespace(url="http://127.0.0.1:1"), fleet)

    assert "serving at http://127.0.0.1:1" in terminal.getvalue()


class StoppedAtOnce(io.StringIO):
    """A reader that asks the fleet to end as soon as it reads that it serves."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words
        self.is_told = False

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.words in text and not self.is_told:
            self.is_told = True
            os.kill(os.getpid(), signal.SIGTERM)
        return written


@pytest.mark.parametrize("words", ["serving at", "curl"])
def test_serving__asked_to_end_as_it_says_so__ends_as_later(hangup: None, words: str) -> None:
    signal.signal(signal.SIGHUP, lambda number, frame: None)
    fleet = parse_fleet_file("models: [{id: m, source: x}]\npools: [{name: p, device: cpu}]", name="f", base=Path())

    with terminable():
        serve_until_interrupted(Console(file=StoppedAtOnce(words)), SimpleNamespace(url="http://127.0.0.1:1"), fleet)
