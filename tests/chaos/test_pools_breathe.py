"""A pool grows from one unit to three and shrinks to one again, under load and over three raylets: nothing is lost, and
the units that end are those that the control loop has emptied. The raylets are there from the start: what an autoscaler
does is not tried here.
"""

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from chaos_load import MODELS, Load
from fleet_process import FleetProcess
from fleets.byte_checkpoint import write_checkpoint
from ray_nodes import RayNodes, ray_nodes

PORT = 20731
RAY_PORTS = 20740
PATIENCE_S = 150.0
POLL_S = 0.2
_SHAPE = (16, 4096, 14336, 32, 8, 128)
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


def fleet_file(folder: Path) -> Path:
    """Demand is expected that asks for three nodes; what comes asks for one."""
    for model in MODELS:
        write_checkpoint(folder / model, _SHAPE)
    slo = {"ttft_s": 5.0, "tbt_s": 1.0}
    demand = {"rate_per_s": 30.0, "prompt_tokens": 2000, "output_tokens": 50}
    fleet = {
        "name": "breathing",
        "models": [
            {"id": m, "source": f"./{m}", "slo": slo, "replicas": {"min": 1, "max": 3}, "demand": demand}
            for m in MODELS
        ],
        "pools": [
            {
                "name": "breathes",
                "device": "simulated",
                "gpu_type": "A40",
                "kv_memory": "2GiB",
                "node_labels": {"place": "goes"},
                "nodes": {"min": 1, "max": 3},
                "scaling": {"cooldown_s": 60, "provision_s": 5},
            }
        ],
        "placement": {"replan_every_s": 3, "min_residency_s": 1, "max_moves_per_min": 60},
        "drain": {"move_s": 10, "finish_s": 10},
        "gateway": {"port": PORT, "proxy": "python", "replicas": 2, "hold_s": 90},
    }
    file = folder / "fleet.json"
    file.write_text(json.dumps(fleet))
    return file


@pytest.fixture
def nodes() -> Iterator[RayNodes]:
    with ray_nodes(ports=RAY_PORTS) as nodes:
        yield nodes


class Watched:
    """The fleet's state, and the units that were ever said to be leaving."""

    def __init__(self, process: FleetProcess) -> None:
        self._process = process
        self.left: set[str] = set()

    async def until(self, is_so: Callable[[Any, set[str]], bool]) -> set[str]:
        """Returns the units of the moment."""
        state: Any = None
        async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
            for _ in range(int(PATIENCE_S / POLL_S)):
                state = (await http.get(f"{self._process.url}/fleet")).json()
                self.left |= {unit for pool in state["pools"] for unit in pool["leaving"]}
                units = {u["report"]["unit_id"] for u in state["units"]}
                if is_so(state["pools"][0], units):
                    return units
                await asyncio.sleep(POLL_S)
        raise AssertionError(f"not so after {PATIENCE_S:g} s: {state['pools']}\n{self._process.output}")


def test_pool__one_unit_to_three_and_back__loses_nothing_and_ends_what_it_has_emptied(
    nodes: RayNodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        nodes.add(number=number)
    process = FleetProcess(fleet_file(tmp_path), nodes.environment)
    seen: list[set[str]] = []
    try:
        process.wait_until_serving()
        load, watched = Load.calibrated(process.url), Watched(process)

        async def trouble() -> None:
            seen.append(await watched.until(lambda _, units: len(units) == 3))
            seen.append(await watched.until(lambda pool, units: len(units) == 1 and pool["wanted"] == 1))

        run = load.through(trouble, clients=2)

        most, least = seen
        with capsys.disabled():
            print(f"\n  1 -> 3 -> 1 units: {len(run.answers)} requests, {len(run.lost())} lost")
        assert not run.lost()
        assert not run.wrong()
        assert most - least == watched.left
        assert process.stop(signal.SIGINT) == 0
    finally:
        process.kill()
