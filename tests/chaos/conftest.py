"""One fleet for all scenarios: three simulated units, three models of which each has two replicas, two gateways."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parents[1] / room) for room in ("e2e", "k8s", "../benchmarks")]

from chaos_fleet_file import fleet_of
from chaos_load import Load
from fleet_process import FleetProcess, running_fleet

PORT = 20411


def pytest_itemcollected(item: pytest.Item) -> None:
    """The long sets run when asked for: `pytest -m slow tests/chaos`, and `-m soak`."""
    asked = item.config.getoption("markexpr")
    if item.get_closest_marker("soak"):
        if "soak" not in asked:
            item.add_marker(pytest.mark.skip(reason="an hour long; run `pytest -m soak tests/chaos`"))
    elif item.get_closest_marker("slow") and "slow" not in asked:
        item.add_marker(pytest.mark.skip(reason="minutes long; run `pytest -m slow tests/chaos`"))


@pytest.fixture(scope="module")
def chaos_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chaos")


@pytest.fixture(scope="module")
def chaos_fleet(chaos_folder: Path) -> Iterator[FleetProcess]:
    with running_fleet(fleet_of(chaos_folder, port=PORT)) as process:
        yield process


@pytest.fixture(scope="module")
def load(chaos_fleet: FleetProcess) -> Load:
    """Knows what every prompt is answered when nothing is wrong."""
    return Load.calibrated(chaos_fleet.url)
