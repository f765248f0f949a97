"""Every alert of the chart fires by its real fault: Prometheus scrapes a fleet on Ray that is being broken. The faults
share one fleet and follow each other.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from alert_faults import FAULTS, NOT_ON_ONE_MACHINE, Fault, keep_asking
from chaos_faults import until_well
from chaos_fleet_file import fleet_of
from fleet_process import FleetProcess
from prometheus_server import Prometheus, alerts_of, binary, chart_rules, prometheus

PORT = 20711
UNITS = 2
PEACE_S = 8.0
PATIENCE_S = 150.0
POOL = {"name": "sim", "device": "simulated", "gpu_type": "A40", "gpus_per_node": UNITS, "kv_memory": "384MiB"}
GATEWAY = {"replicas": 2, "max_queued_requests": 4, "hold_s": 8.0}


def test_faults__of_all_alerts__are_here_or_it_is_said_why_not() -> None:
    """Runs everywhere: an alert that is added needs a fault."""
    broken = [alert for fault in FAULTS for alert in fault.alerts]

    assert len(broken) == len(set(broken))
    assert not set(broken) & set(NOT_ON_ONE_MACHINE)
    assert {*broken, *NOT_ON_ONE_MACHINE} == {rule["alert"] for rule in alerts_of(chart_rules(units=UNITS))}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetProcess]:
    file = fleet_of(tmp_path_factory.mktemp("fleet"), port=PORT, pools=(POOL,), sections={"gateway": GATEWAY})
    process = FleetProcess(file)
    try:
        process.wait_until_serving()
        yield process
    finally:
        process.kill()


@pytest.fixture(scope="module")
def server(fleet: FleetProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    program = binary()
    assert program is not None, "conftest.py skips then"
    folder = tmp_path_factory.mktemp("prometheus")
    address = fleet.url.removeprefix("http://")
    with prometheus(program, folder, port=PORT + 1, gateway=address, units=UNITS) as running:
        until_s = time.monotonic() + 30
        while not running.has_samples():
            assert time.monotonic() < until_s, "it does not reach the gateways"
            time.sleep(0.2)
        time.sleep(PEACE_S)
        assert running.firing() == set(), "in peace none fires"
        yield running


@pytest.mark.prometheus
@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name.replace(" ", "_"))
def test_fault__on_a_fleet_that_prometheus_watches__fires_its_alerts(
    fleet: FleetProcess, server: Prometheus, fault: Fault, capsys: pytest.CaptureFixture[str]
) -> None:
    if fault.needs_peace:
        asyncio.run(until_well(fleet, units=UNITS))
    before = server.firing()
    fired, took_s = asyncio.run(_until_fired(fleet, server, fault))

    with capsys.disabled():
        print(f"\n  {fault.name}: {', '.join(f'{a} after {s:.0f} s' for a, s in took_s.items())}", end="")
    assert not fault.alerts & before, "it fired before there was a reason"
    assert fault.alerts <= fired, server.figures()


async def _until_fired(fleet: FleetProcess, server: Prometheus, fault: Fault) -> tuple[set[str], dict[str, float]]:
    """All that have fired once, and after how long those of the fault did."""
    asking = [asyncio.create_task(keep_asking(fleet.url, n, fault.max_tokens)) for n in range(fault.clients)]
    await asyncio.sleep(2.0 if asking else 0.0)
    began_s = time.monotonic()
    breaking = asyncio.ensure_future(fault.strike(fleet))
    fired: set[str] = set()
    took_s: dict[str, float] = {}
    try:
        while not fault.alerts <= fired and time.monotonic() - began_s < PATIENCE_S:
            fired |= await asyncio.to_thread(server.firing)
            took_s |= {a: time.monotonic() - began_s for a in fault.alerts & fired - took_s.keys()}
            await asyncio.sleep(0.3)
    finally:
        for task in (breaking, *asking):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(breaking, *asking, return_exceptions=True)
    return fired, took_s
