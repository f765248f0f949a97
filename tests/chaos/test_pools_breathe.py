"""A pool grows from one node to three and shrinks to one again, under load, on raylets that come after it has asked for
them and go when no unit runs on them: nothing is lost, and the units that end are those that were emptied. The models
of a spot node are elsewhere before it is taken away.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from breathing_fleet import Breathing, Seen, breathing_fleet, fleet_file, through
from chaos_load import MODELS, Load
from nodes_on_demand import NodesOnDemand
from ray_nodes import RayNodes, ray_nodes

RAY_PORTS = 20740
NOTICE_S = 45
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def cluster() -> Iterator[RayNodes]:
    with ray_nodes(ports=RAY_PORTS) as nodes:
        yield nodes


@pytest.fixture
def breathing(tmp_path: Path, cluster: RayNodes) -> Iterator[Breathing[NodesOnDemand]]:
    nodes = NodesOnDemand(cluster, at_start=1)
    with breathing_fleet(fleet_file(tmp_path), cluster.environment, nodes) as fleet:
        yield fleet


@pytest.fixture
def spot(tmp_path: Path, cluster: RayNodes) -> Iterator[Breathing[NodesOnDemand]]:
    nodes = NodesOnDemand(cluster, at_start=2)
    with breathing_fleet(fleet_file(tmp_path, nodes=2, replicas=1), cluster.environment, nodes) as fleet:
        yield fleet


def test_pool__one_node_to_three_and_back__loses_nothing_and_ends_what_it_has_emptied(
    breathing: Breathing[NodesOnDemand], capsys: pytest.CaptureFixture[str]
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
    breathing: Breathing[NodesOnDemand], is_leaving: bool, capsys: pytest.CaptureFixture[str]
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
    spot: Breathing[NodesOnDemand], cluster: RayNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each model has one replica, so what is on that node must move."""
    took_s: list[float] = []

    async def taken_away() -> None:
        seen = await spot.until(lambda s: sum(len(ready(u)) for u in s.units) == len(MODELS))
        goes = max(seen.units, key=lambda u: len(ready(u)))
        goes_id, node = goes["report"]["unit_id"], spot.nodes.of(goes)
        began_s = time.monotonic()
        await asyncio.to_thread(cluster.drain, node, deadline_s=NOTICE_S)
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
