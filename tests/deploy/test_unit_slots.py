"""Which place of the fleet a unit has, across a restart of the control loop."""

import pickle

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


def test_leave__nodes_come_and_go_for_months__only_those_left_last_are_kept() -> None:
    slots, sizes = UnitSlots(), []
    join(slots, "stays", "dies")
    slots.leave(FakeUnit(unit_id="dies").report())
    for node in range(10_000, 14_000):
        unit = FakeUnit(unit_id=f"u{node}", node=f"n{node}").report()
        slots.join(unit)
        slots.leave(unit)
        sizes.append(len(pickle.dumps(slots)) if node % 1000 == 999 else 0)

    join(slots, "comes", "comes too")

    assert sizes[1999] == sizes[2999] == sizes[3999]
    assert slots.kept() == {"comes": "p/n/1", "comes too": "p/n/2", "stays": "p/n/0"}
    slots.join(FakeUnit(unit_id="back", node="n13999").report())
    assert slots.of("back") == "p/n13999/0"
