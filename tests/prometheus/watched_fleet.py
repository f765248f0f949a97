"""A fleet that is broken while a real Prometheus watches it with the chart's rules."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from alert_faults import Fault, keep_asking
from chaos_faults import until_well
from fleet_process import FleetProcess
from prometheus_server import Prometheus, binary, prometheus

UNITS = 2
PEACE_S = 8.0
PATIENCE_S = 150.0


class WatchedFleet:
    def __init__(self, fleet: FleetProcess, server: Prometheus) -> None:
        self._fleet = fleet
        self._server = server

    def check(self, fault: Fault) -> str:
        """Its alerts fire, and not before. Returns after how long each did."""
        if fault.needs_peace:
            asyncio.run(until_well(self._fleet, units=UNITS))
        before = self._server.firing()
        assert not fault.alerts & before, "it fired before there was a reason"
        fired, took_s = asyncio.run(self._until_fired(fault))
        assert fault.alerts <= fired, self._server.figures()
        return f"{fault.name}: {', '.join(f'{a} after {s:.0f} s' for a, s in took_s.items())}"

    async def _until_fired(self, fault: Fault) -> tuple[set[str], dict[str, float]]:
        """All that have fired once, and after how long those of the fault did."""
        asking = [asyncio.create_task(keep_asking(self._fleet.url, n, fault.max_tokens)) for n in range(fault.clients)]
        await asyncio.sleep(2.0 if asking else 0.0)
        began_s = time.monotonic()
        breaking = asyncio.ensure_future(fault.strike(self._fleet))
        fired: set[str] = set()
        took_s: dict[str, float] = {}
        try:
            while not fault.alerts <= fired and time.monotonic() - began_s < PATIENCE_S:
                fired |= await asyncio.to_thread(self._server.firing)
                took_s |= {a: time.monotonic() - began_s for a in fault.alerts & fired - took_s.keys()}
                await asyncio.sleep(0.3)
        finally:
            for task in (breaking, *asking):
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(breaking, *asking, return_exceptions=True)
        return fired, took_s


@contextmanager
def watched_fleet(file: Path, folder: Path, *, port: int) -> Iterator[WatchedFleet]:
    """Starts the fleet of the file and its Prometheus; in peace no alert fires."""
    program = binary()
    assert program is not None, "conftest.py skips then"
    fleet = FleetProcess(file)
    try:
        fleet.wait_until_serving()
        address = fleet.url.removeprefix("http://")
        with prometheus(program, folder, port=port, gateway=address, units=UNITS) as server:
            until_s = time.monotonic() + 30
            while not server.has_samples():
                assert time.monotonic() < until_s, "it does not reach the gateways"
                time.sleep(0.2)
            time.sleep(PEACE_S)
            assert server.firing() == set(), "in peace none fires"
            yield WatchedFleet(fleet, server)
    finally:
        fleet.kill()
