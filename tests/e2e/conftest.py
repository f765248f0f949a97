import signal
from collections.abc import Iterator

import pytest
from fleet_files import fleet_file
from fleet_process import FleetProcess, running_fleet


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetProcess]:
    file = fleet_file(tmp_path_factory.mktemp("fleet"), proxy="python")
    with running_fleet(file, stop=signal.SIGHUP) as process:
        yield process


@pytest.fixture(scope="module")
def haproxy_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetProcess]:
    file = fleet_file(tmp_path_factory.mktemp("haproxy"), proxy="haproxy")
    with running_fleet(file, stop=signal.SIGTERM) as process:
        yield process
