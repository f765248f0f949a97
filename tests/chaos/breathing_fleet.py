"""A fleet whose pool grows from one node to three and shrinks again, under load."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import httpx
import pytest
from chaos_load import MODELS, Load, Run
from fleet_process import FleetProcess
from fleets.byte_checkpoint import write_checkpoint

PORT = 20731
PATIENCE_S = 180.0
POLL_S = 0.2
CROWD = 5  # clients, with long prompts: they need three nodes, and two with short ones need one
_LONG_PROMPTS = tuple([7 + i, *(20 + j % 200 for j in range(6000))] for i in range(2))
_SHAPE = (16, 4096, 14336, 32, 8, 128)


class Nodes(Protocol):
    """Those of the pool. `follow` is told, again and again, what the fleet says of it."""

    @property
    def count(self) -> int: ...

    async def follow(self, pool: Any, units: list[Any]) -> None: ...


N = TypeVar("N", bound=Nodes)


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
class Breathing(Generic[N]):
    process: FleetProcess
    nodes: N
    left: set[str] = field(default_factory=set)
    """Units that were ever said to be leaving."""
    served: set[str] = field(default_factory=set)
    """Units that ever had a model."""

    async def until(self, is_so: Callable[[Seen], bool]) -> Seen:
        """Meanwhile nodes come and go as they are wanted."""
        state: Any = None
        until_s = time.monotonic() + PATIENCE_S
        async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
            while time.monotonic() < until_s:
                answer = await http.get(f"{self.process.url}/fleet")
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:  # its control loop was on a node that is lost
                    state = answer.json()
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
def breathing_fleet(file: Path, environment: Mapping[str, str], nodes: N) -> Iterator[Breathing[N]]:
    process = FleetProcess(file, environment)
    try:
        process.wait_until_serving()
        yield Breathing(process, nodes)
        process.assert_stops_well()
    finally:
        process.kill()


def through(
    breathing: Breathing[N], shrink: Callable[[Seen], Awaitable[None]], capsys: pytest.CaptureFixture[str]
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


def grows_and_shrinks(file: Path, environment: Mapping[str, str], nodes: N, capsys: pytest.CaptureFixture[str]) -> None:
    """From one node to three and back, which nobody but Ray adds and removes."""
    with breathing_fleet(file, environment, nodes) as breathing:
        assert nodes.count == 1

        async def shrink(most: Seen) -> None:
            assert nodes.count == len({u["report"]["node"] for u in most.units}) == 3
            least = await breathing.until(lambda s: len(s.ids) == s.pool["wanted"] == nodes.count == 1)
            assert breathing.served - least.ids == breathing.served & breathing.left

        through(breathing, shrink, capsys)
