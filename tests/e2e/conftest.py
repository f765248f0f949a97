import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fleet_files import fleet_file
from fleet_process import FleetProcess


@contextmanager
def running(folder: Path, *, proxy: str, stop: signal.Signals) -> Iterator[FleetProcess]:
    process = FleetProcess(fleet_file(folder, proxy=proxy))
    try:
        process.wait_until_serving()
        yield process
        assert process.stop(stop) == 0
    finally:
        process.kill()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetProcess]:
    with running(tmp_path_factory.mktemp("fleet"), proxy="python", stop=signal.SIGINT) as process:
        yield process


@pytest.fixture(scope="module")
def haproxy_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetProcess]:
    with running(tmp_path_factory.mktemp("haproxy"), proxy="haproxy", stop=signal.SIGTERM) as process:
        yield process
