"""Ends a command that is told to end as Ctrl-C does."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a closed terminal, stop as Ctrl-C does, with everything taken down. A SIGHUP that is
    ignored, as by nohup, stays so.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    stopping = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in stopping:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in stopping:
            signal.signal(number, before[number])
