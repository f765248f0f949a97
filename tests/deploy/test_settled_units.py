"""Units that Serve replaces one after the other: each is emptied before it goes and serves before the next one goes."""

from fleet_model import World, catalog, catalog_model
from test_moves import Told, room_for, world_of


def settled(world: World) -> dict[str, bool]:
    return {unit_id: world.loop.is_settled(unit_id, world.now_s) for unit_id in world.units}


def test_unit__told_to_leave__is_settled_when_its_models_serve_elsewhere() -> None:
    solver = Told(a="u1", b="u1")
    world = world_of(solver, "a", "b")
    solver.homes = dict.fromkeys("ab", ("u1", "u2"))
    world.units["u1"].wants_to_leave = True
    world.beat()
    at_once = settled(world)["u1"]

    for _ in range(10):
        world.beat()
        assert all(world.serving(m) for m in "ab")

    assert not at_once
    assert settled(world)["u1"]
    assert world.units["u2"].ready() == {"a", "b"}


def test_unit__told_to_leave_and_no_room_elsewhere__serves_on() -> None:
    world = world_of(Told(a="u1", b="u2"), "a", "b", room=1)
    world.units["u1"].wants_to_leave = True

    world.beat(20)

    assert world.serving("a") == ["u1"]
    assert not settled(world)["u1"]


def test_units__all_told_to_leave__are_settled_at_once() -> None:
    world = world_of(Told(a="u1", b="u2"), "a", "b")
    for unit in world.units.values():
        unit.wants_to_leave = True

    world.beat()

    assert settled(world) == {"u1": True, "u2": True}


def test_unit__of_the_only_pool_which_is_renamed_there_and_back__serves_on_until_the_new_ones_do() -> None:
    world = World(catalog("a"), expected_units=1)
    old = world.start_unit()
    world.beat(6)

    for pool in ("renamed", "p"):
        world.want(catalog("a"), pool=pool)
        old.wants_to_leave = True
        world.beat(6)
        assert not settled(world)[old.unit_id]

        new = world.start_unit(pool=pool)
        for _ in range(10):
            world.beat()
            assert world.serving("a")
        assert settled(world)[old.unit_id]
        assert new.ready() == {"a"}

        old.is_leaving = True
        world.beat()
        world.kill_unit(old.unit_id)
        old = new


def test_units__all_told_to_leave_and_the_first_has_gone__are_settled_at_once() -> None:
    world = world_of(Told(a="u1", b="u2"), "a", "b")
    for unit in world.units.values():
        unit.wants_to_leave = True
    world.beat()
    world.units["u1"].is_leaving = True
    world.beat()
    world.kill_unit("u1")
    world.now_s += 60.0

    world.beat(2)

    assert settled(world) == {"u2": True}


def test_unit__comes_to_a_fleet_that_serves__is_settled_when_it_holds_what_it_shall() -> None:
    world = World(catalog(catalog_model("a", replicas=2)), expected_units=2)
    for _ in range(2):
        world.start_unit(memory_bytes=room_for(2))
    world.beat(6)
    world.kill_unit("u1")
    world.now_s += 2.0
    world.beat(4)
    new = world.start_unit(memory_bytes=room_for(2))

    seen = []
    for _ in range(8):
        world.beat()
        seen.append((settled(world)[new.unit_id], new.ready() == {"a"}))

    assert seen[0] == (False, False)
    assert seen[-1] == (True, True)
    assert (True, False) not in seen


def test_unit__first_of_a_fleet_that_serves_nothing_yet__waits_for_nobody() -> None:
    world = World(catalog("a"), expected_units=2)
    unit = world.start_unit()
    world.beat()

    assert settled(world) == {unit.unit_id: True}


def test_unit__that_nobody_has_heard_of__is_not_settled() -> None:
    world = World(catalog("a"), expected_units=1)

    assert not world.loop.is_settled("u9", world.now_s)


def test_rolling_update__unit_by_unit__every_model_is_served_all_the_time() -> None:
    """As Serve does it: it tells one to go, ends it when it has gone, and goes on when its successor is settled."""
    world = World(catalog("a", "b", "c"), expected_units=3)
    for _ in range(3):
        world.start_unit(memory_bytes=room_for(3))
    world.beat(6)

    for old in ("u1", "u2", "u3"):
        world.units[old].wants_to_leave = True
        beats = 0
        while beats < 2 or not settled(world)[old]:
            world.beat()
            beats += 1
            assert beats < 60
            assert all(world.serving(m) for m in "abc")
        world.units[old].is_leaving = True
        world.beat()
        world.kill_unit(old)
        new = world.start_unit(memory_bytes=room_for(3))
        beats = 0
        while beats < 2 or not settled(world)[new.unit_id]:
            world.beat()
            beats += 1
            assert beats < 60
            assert all(world.serving(m) for m in "abc")

    assert sorted(world.units) == ["u4", "u5", "u6"]
