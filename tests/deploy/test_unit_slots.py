"""Which place of the fleet a unit has, across a restart of the control loop."""

from fleet_model import FakeUnit

from deploy.control.restart_budget import UnitSlots


def successor_of(*unit_ids: str) -> UnitSlots:
    before, after = UnitSlots(), UnitSlots()
    for unit_id in unit_ids:
        before.join(FakeUnit(unit_id=unit_id).report())
    after.restore(before.kept())
    return after


def join(slots: UnitSlots, *unit_ids: str) -> None:
    for unit_id in unit_ids:
        slots.join(FakeUnit(unit_id=unit_id).report())


def test_join__newcomer_is_heard_before_those_that_live__they_have_their_own_places() -> None:
    slots = successor_of("u1", "u2")

    join(slots, "u3", "u1", "u2")

    assert slots.kept() == {"u1": "p/n/0", "u2": "p/n/1", "u3": "p/n/2"}


def test_join__one_died_while_the_control_loop_was_away__newcomer_has_its_place() -> None:
    slots = successor_of("u1", "u2")

    join(slots, "u3", "u1")

    assert slots.kept() == {"u1": "p/n/0", "u3": "p/n/1"}


def test_join__newcomer_dies_in_the_place_of_one_that_lives__that_one_has_it() -> None:
    slots = successor_of("u1")
    join(slots, "u2")
    assert slots.leave(FakeUnit(unit_id="u2").report()) == "p/n/0"

    join(slots, "u1", "u3")

    assert slots.kept() == {"u1": "p/n/0", "u3": "p/n/1"}
