"""A pool grows from one node to three and shrinks to one again, under load, on raylets that come after it has asked for
them and go when no unit runs on them: nothing is lost, and the units that end are those that were emptied. The models
of a spot node are elsewhere before it is taken away.
"""

import asyncio
import json
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from chaos_load import MODELS, Load, Run
from fleet_process import FleetProcess
from fleets.byte_checkpoint import write_checkpoint
from nodes_on_demand import NodesOnDemand
from ray_nodes import RayNodes, ray_nodes

PORT = 20731
RAY_PORTS = 20740
PATIENCE_S = 180.0
POLL_S = 0.2
CROWD = 5  # clients, with long prompts: they need three nodes, and two with short ones need one
NOTICE_S = 45
_LONG_PROMPTS = tuple([7 + i, *(20 + j % 200 for j in range(6000))] for i in range(2))
_SHAPE = (16, 4096, 14336, 32, 8, 128)
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


def fleet_file(folder: Path, *, nodes: int = 1, replicas: int = 3) -> Path:
    """With so many nodes at least, and replicas of a model at most."""
    for model in MODELS:
        write_checkpoint(folder / model, _SHAPE)
    slo = {"ttft_s": 5.0, "tbt_s": 1.0}
    fleet = {
        "name": "breathing",
        "models": [{"id": m, "source": f"./{m}", "slo": slo, "replicas": {"min": 1, "max": replicas}} for m in MODELS],
        "pools": [
            {
                "name": "breathes",
                "device": "simulated",
                "gpu_type": "A40",
                "kv_memory": "8GiB",
                "node_labels": {"place": "goes"},
                "nodes": {"min": nodes, "max": 3},
                "scaling": {"cooldown_s": 20, "provision_s": 5},
            }
        ],
        "placement": {"replan_every_s": 3, "min_residency_s": 1, "max_moves_per_min": 60},
        "drain": {"move_s": 10, "finish_s": 10},
        "gateway": {
            "port": PORT,
            "proxy": "python",
            "replicas": 2,
            "hold_s": 90,
            "node_labels": {"place": "stays"},
        },
    }
    file = folder / "fleet.json"
    file.write_text(json.dumps(fleet))
    return file


@dataclass(slots=True)
class Seen:
    """What the fleet says of its pool at one time."""

    pool: Any
    units: list[Any]

    @property
    def ids(self) -> set[str]:
        return {unit["report"]["unit_id"] for unit in self.units}

    @property
    def serving(self) -> set[str]:
        return {u["report"]["unit_id"] for u in self.units if any(m["phase"] == "ready" for m in u["report"]["models"])}


@dataclass(slots=True)
class Breathing:
    process: FleetProcess
    cluster: RayNodes
    nodes: NodesOnDemand
    left: set[str] = field(default_factory=set)
    """Units that were ever said to be leaving."""
    served: set[str] = field(default_factory=set)
    """Units that ever had a model."""

    async def until(self, is_so: Callable[[Seen], bool]) -> Seen:
        """Meanwhile nodes come and go as they are wanted."""
        state: Any = None
        async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
            for _ in range(int(PATIENCE_S / POLL_S)):
                state = (await http.get(f"{self.process.url}/fleet")).json()
                seen = Seen(state["pools"][0], state["units"])
                self.left |= set(seen.pool["leaving"])
                self.served |= seen.serving
                if is_so(seen):
                    return seen
                await self.nodes.follow(seen.pool, seen.units)
                await asyncio.sleep(POLL_S)
        told = {"pools": state["pools"], "decisions": state["decisions"], "nodes": self.nodes.count}
        raise AssertionError(f"not so after {PATIENCE_S:g} s: {json.dumps(told)}\n{self.process.output}")

    async def grown(self, crowd: Load) -> tuple[Seen, Run]:
        """A crowd comes, and goes when three units serve."""
        seen: list[Seen] = []

        async def grow() -> None:
            seen.append(await self.until(lambda s: len(s.serving) == 3))

        run = await crowd.during(grow, after_s=0.0, clients=CROWD, max_tokens=20)
        return seen[0], run


@contextmanager
def breathing_fleet(file: Path, *, nodes: int) -> Iterator[Breathing]:
    with ray_nodes(ports=RAY_PORTS) as cluster:
        on_demand = NodesOnDemand(cluster, at_start=nodes)
        process = FleetProcess(file, cluster.environment)
        try:
            process.wait_until_serving()
            yield Breathing(process, cluster, on_demand)
            assert process.stop(signal.SIGINT) == 0
        finally:
            process.kill()


@pytest.fixture
def breathing(tmp_path: Path) -> Iterator[Breathing]:
    with breathing_fleet(fleet_file(tmp_path), nodes=1) as fleet:
        yield fleet


@pytest.fixture
def spot(tmp_path: Path) -> Iterator[Breathing]:
    with breathing_fleet(fleet_file(tmp_path, nodes=2, replicas=1), nodes=2) as fleet:
        yield fleet


def through(
    breathing: Breathing, shrink: Callable[[Seen], Awaitable[None]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Two clients ask all the time, a crowd of others until there are three nodes."""
    calm = Load.calibrated(breathing.process.url)
    crowd = Load.calibrated(breathing.process.url, _LONG_PROMPTS)
    runs: list[Run] = []

    async def trouble() -> None:
        most, run = await breathing.grown(crowd)
        runs.append(run)
        await shrink(most)

    runs.append(calm.through(trouble, clients=2))

    with capsys.disabled():
        answers, lost = (
            sum(len(of) for of in told) for told in zip(*((r.answers, r.lost()) for r in runs), strict=True)
        )
        print(f"\n  1 -> 3 -> 1 nodes: {answers} requests, {lost} lost")
    for run in runs:
        assert not run.lost()
        assert not run.refused()
        assert not run.wrong()


def test_pool__one_node_to_three_and_back__loses_nothing_and_ends_what_it_has_emptied(
    breathing: Breathing, capsys: pytest.CaptureFixture[str]
) -> None:
    assert breathing.nodes.count == 1

    async def shrink(most: Seen) -> None:
        assert breathing.nodes.count == len({u["report"]["node"] for u in most.units}) == 3
        least = await breathing.until(lambda s: len(s.ids) == s.pool["wanted"] == breathing.nodes.count == 1)
        assert len(breathing.served) == 3
        assert breathing.served - least.ids == breathing.served & breathing.left

    through(breathing, shrink, capsys)


@pytest.mark.parametrize("is_leaving", [False, True], ids=["one that stays", "one that leaves"])
def test_pool__raylet_killed_while_it_shrinks__loses_nothing_and_keeps_one_node(
    breathing: Breathing, is_leaving: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async def shrink(most: Seen) -> None:
        seen = await breathing.until(lambda s: bool(s.pool["leaving"]))
        leaving = set(seen.pool["leaving"])
        victim = next(u for u in seen.units if (u["report"]["unit_id"] in leaving) is is_leaving)
        await asyncio.to_thread(breathing.nodes.kill, breathing.nodes.of(victim))
        least = await breathing.until(lambda s: len(s.serving) == s.pool["wanted"] == breathing.nodes.count == 1)
        gone = breathing.served - least.ids - {victim["report"]["unit_id"]}
        assert gone <= breathing.left

    through(breathing, shrink, capsys)


def ready(unit: Any) -> set[str]:
    return {m["model"] for m in unit["report"]["models"] if m["phase"] == "ready"}


def test_spot_node__told_to_go_by_a_deadline__is_empty_before_it_and_another_comes(
    spot: Breathing, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each model has one replica, so what is on that node must move."""
    took_s: list[float] = []

    async def taken_away() -> None:
        seen = await spot.until(lambda s: sum(len(ready(u)) for u in s.units) == len(MODELS))
        goes = max(seen.units, key=lambda u: len(ready(u)))
        goes_id, node = goes["report"]["unit_id"], spot.nodes.of(goes)
        began_s = time.monotonic()
        await asyncio.to_thread(spot.cluster.drain, node, deadline_s=NOTICE_S)
        spot.nodes.give_up(node)

        def is_elsewhere(now: Seen) -> bool:
            elsewhere = {m for u in now.units if u["report"]["unit_id"] != goes_id for m in ready(u)}
            held = [m for u in now.units if u["report"]["unit_id"] == goes_id for m in u["report"]["models"]]
            return elsewhere == set(MODELS) and not [m for m in held if m["phase"] != "asleep"]

        await spot.until(is_elsewhere)
        took_s.append(time.monotonic() - began_s)
        assert took_s[0] < NOTICE_S
        await spot.until(lambda _: time.monotonic() >= began_s + NOTICE_S)
        await asyncio.to_thread(node.kill)
        again = await spot.until(lambda s: len(s.ids - {goes_id}) == 2 and goes_id not in s.ids)
        assert again.pool["wanted"] == spot.nodes.count == 2

    run = Load.calibrated(spot.process.url).through(taken_away, clients=4)

    with capsys.disabled():
        print(f"\n  spot node: empty after {took_s[0]:.1f} of {NOTICE_S} s, {len(run.answers)} requests")
    assert not run.lost()
    assert not run.refused()
    assert not run.wrong()
