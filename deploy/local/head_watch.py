"""Ends a command whose Ray head is gone: Ray's client would end it among lines of its own, which name no remedy."""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from deploy.errors import ClusterUnreachable

_CONNECT_S = 2.0


@contextmanager
def ending_without_head(address: str, *, patience_s: float, look_every_s: float = 5.0) -> Iterator[None]:
    """`address` is the head's host:port. A head that comes back within `patience_s` finds the command as it was. After
    that the process ends, for what it has asked of Ray would not return.
    """
    is_over = threading.Event()

    def watch() -> None:
        heard_s = time.monotonic()
        while not is_over.wait(look_every_s):
            if _answers(address):
                heard_s = time.monotonic()
            elif (silent_s := time.monotonic() - heard_s) > patience_s and not is_over.is_set():
                reason = f"its head was there, and has not answered for {silent_s:.0f} s"
                ended = ClusterUnreachable(address=address, reason=reason)
                with suppress(OSError):
                    sys.stderr.write(f"muxfleet: {ended}\n")
                    sys.stderr.flush()
                os._exit(ended.exit_code)

    threading.Thread(target=watch, name="head-watch", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S):
            return True
    except OSError:
        return False
