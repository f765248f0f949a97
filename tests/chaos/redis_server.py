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


class RedisServer:
    """Starts at once; what was written is on disk when it is answered, as of one that is meant to last."""

    def __init__(self, folder: Path, *, port: int) -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("needs redis-server: apt install redis-server")
        options = {"port": port, "bind": "127.0.0.1", "save": "", "appendonly": "yes", "appendfsync": "always"}
        arguments = [
            argument for name, value in {**options, "dir": folder}.items() for argument in (f"--{name}", str(value))
        ]
        self.address = f"127.0.0.1:{port}"
        self._port, self._folder = port, folder
        self._command = [program, *arguments]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        until_s = time.monotonic() + _START_S
        while time.monotonic() < until_s:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1.0):
                break
            time.sleep(0.1)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)

    def forget(self) -> None:
        """While it does not run: the next start finds nothing."""
        shutil.rmtree(self._folder / "appendonlydir")


@contextmanager
def redis_server(folder: Path, *, port: int) -> Iterator[RedisServer]:
    """Skips the test where there is none."""
    redis = RedisServer(folder, port=port)
    try:
        yield redis
    finally:
        redis.kill()
