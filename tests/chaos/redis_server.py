"""A Redis of a test's own."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_START_S = 30.0


@contextmanager
def redis_server(folder: Path, *, port: int) -> Iterator[str]:
    """Its address. Skips the test where there is none."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("needs redis-server: apt install redis-server")
    arguments = [f"--port {port}", "--bind 127.0.0.1", "--save ''", f"--dir {folder}"]
    process = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL)
    try:
        until_s = time.monotonic() + _START_S
        while time.monotonic() < until_s:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
                break
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(10)
