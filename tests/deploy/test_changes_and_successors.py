"""The control loop dies in the middle of a planned change, at any beat of it, and its successor finishes the change: no
model is without a ready replica meanwhile. In virtual time; with real processes: tests/chaos/test_fleet_changes.py.
"""

from collections.abc import Callable, Iterator, Mapping

import pytest
from fleet_model import FakeUnit, World, catalog, catalog_model

from deploy.control.cordons import Cordon, Cordons, CordonScope

MODELS = "abc"
WANTED = catalog(*(catalog_model(m, replicas=2) for m in MODELS))
LONGEST_BEATS = 60
Change = Callable[[World], Iterator[None]]
"""Does the next part of a change at each beat, and ends when all of it is there."""


def whole(world: World, units: int) -> bool:
    return len(world.units) == units and all(len(world.serving(m)) == 2 for m in MODELS)


def drain_of_a_unit(world: World) -> Iterator[None]:
    drained = Cordon(scope=CordonScope.UNIT, name="u1", drains=True)
    world.loop.set_cordons(Cordons(entries=(drained,)), "told so")
    while world.units["u1"].phases or not all(len(world.serving(m)) == 2 for m in MODELS):
        yield


def drain_of_a_node(world: World) -> Iterator[None]:
    """Ray's notice, which the control loop asks for every second."""
    going = [u for u in world.units.values() if u.node == "n1"]
    while any(u.phases for u in going):
        world.loop.set_going_nodes(frozenset({"n1"}))
        yield


def more_units(world: World) -> Iterator[None]:
    """Of a pool that was added: what is there stays."""
    before = {u: set(unit.phases) for u, unit in world.units.items()}
    world.want(WANTED, expected_units=6)
    for _ in range(2):
        world.start_unit(node="n3")
        yield
    for _ in range(10):
        assert all(set(world.units[u].phases) >= {m for m in held if m in MODELS} for u, held in before.items())
        yield


def units_one_by_one(world: World) -> Iterator[None]:
    """Another image or engine setting: each unit hands over and ends, the next one when its successor is settled."""
    for old in sorted(world.units):
        unit = world.units[old]
        unit.wants_to_leave = True
        while unit.phases:
            yield
        world.kill_unit(old)
        world.start_unit(node=unit.node)
        yield
        while not whole(world, 4):
            yield


def another_model(world: World) -> Iterator[None]:
    world.want(catalog(*WANTED.models, catalog_model("d", replicas=2)))
    while len(world.serving("d")) < 2:
        yield


CHANGES: Mapping[str, Change] = {
    "drain of a unit": drain_of_a_unit,
    "drain of a node": drain_of_a_node,
    "more units": more_units,
    "units one by one": units_one_by_one,
    "another model": another_model,
}


def world_of_two_nodes() -> World:
    world = World(WANTED, expected_units=4)
    for place in range(4):
        started: FakeUnit = world.start_unit(node=f"n{place // 2 + 1}")
        assert started.node in ("n1", "n2")
    world.beat(12)
    assert whole(world, 4)
    return world


def through(change: Change, *, dies_at: int | None) -> int:
    """How many beats it took."""
    world = world_of_two_nodes()
    for beat, _ in enumerate(change(world)):
        assert beat < LONGEST_BEATS, "the change does not come to its end"
        if beat == dies_at:
            world.hand_over()
        world.beat()
        without = [m for m in MODELS if not world.serving(m)]
        assert not without, f"nobody serves {without} after beat {beat}"
    return beat + 1


@pytest.mark.parametrize("name", CHANGES)
def test_change__control_loop_dies_at_any_beat__successor_finishes_it_and_all_is_served(
    name: str,
) -> None:
    beats = through(CHANGES[name], dies_at=None)

    assert beats >= 2
    for dies_at in range(beats):
        through(CHANGES[name], dies_at=dies_at)
