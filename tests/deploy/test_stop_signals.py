"""What stops `muxfleet up` and `muxfleet demo`."""

import os
import signal
from collections.abc import Iterator

import pytest

from deploy.commands.fleet_screen import _terminable


@pytest.fixture
def hangup() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_terminable__asked_to_end__stops_as_ctrl_c_does(hangup: None, how: signal.Signals) -> None:
    signal.signal(signal.SIGHUP, lambda number, frame: None)  # what was there, and is again afterwards
    before = signal.getsignal(how)

    with pytest.raises(KeyboardInterrupt), _terminable():
        os.kill(os.getpid(), how)

    assert signal.getsignal(how) is before


def test_terminable__hangup_ignored__goes_on(hangup: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does

    with _terminable():
        os.kill(os.getpid(), signal.SIGHUP)
