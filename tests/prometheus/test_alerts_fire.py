"""Every alert of the chart fires by its real fault: Prometheus scrapes a fleet on Ray that is being broken. The faults
share one fleet and follow each other.
"""

from collections.abc import Iterator

import pytest
from alert_faults import FAULTS, NEIGHBOUR, Fault
from chaos_fleet_file import fleet_of
from prometheus_server import alerts_of, chart_rules
from watched_fleet import UNITS, WatchedFleet, watched_fleet

PORT = 20711
POOL = {"name": "sim", "device": "simulated", "gpu_type": "A40", "gpus_per_node": UNITS, "kv_memory": "384MiB"}
GATEWAY = {"replicas": 2, "max_queued_requests": 4, "hold_s": 8.0}


def test_faults__of_all_alerts__are_here() -> None:
    """Runs everywhere: an alert that is added needs a fault."""
    broken = [alert for fault in (*FAULTS, NEIGHBOUR) for alert in fault.alerts]

    assert len(broken) == len(set(broken))
    assert set(broken) == {rule["alert"] for rule in alerts_of(chart_rules(units=UNITS))}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedFleet]:
    folder = tmp_path_factory.mktemp("fleet")
    sections = {"gateway": GATEWAY, "state": {"folder": str(folder)}}
    file = fleet_of(folder, port=PORT, pools=(POOL,), sections=sections)
    with watched_fleet(file, tmp_path_factory.mktemp("prometheus"), port=PORT + 1) as watched:
        yield watched


@pytest.mark.prometheus
@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name.replace(" ", "_"))
def test_fault__on_a_fleet_that_prometheus_watches__fires_its_alerts(
    watched: WatchedFleet, fault: Fault, capsys: pytest.CaptureFixture[str]
) -> None:
    told = watched.check(fault)
    with capsys.disabled():
        print(f"\n  {told}", end="")
