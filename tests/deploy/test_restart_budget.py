"""What the control loop remembers of places and models that died."""

import pytest
from fleet_model import World, catalog, catalog_model

from deploy.control.control_rules import ControlRules
from deploy.control.cordons import Cordon, CordonScope
from deploy.control.restart_budget import RestartBudget

RULES = ControlRules(max_deaths=3, deaths_window_s=600.0, out_s=300.0)


def test_note__third_death_in_the_window__takes_it_out() -> None:
    budget = RestartBudget(RULES)

    assert [budget.note("p", now_s) for now_s in (0.0, 300.0, 601.0, 700.0)] == [False, False, False, True]
    assert budget.out_for_s("p", 800.0) == 200.0


def test_kept__nodes_that_came_and_went_for_days__are_forgotten() -> None:
    """A node that is replaced has another id: its places never die again."""
    budget = RestartBudget(RULES)

    for node in range(1000):
        budget.note(f"spot/{node}/0", 60.0 * node)

    assert len(budget.kept()) <= 11


def test_any_back__somebody_has_looked_since_its_time_was_over__is_told_all_the_same() -> None:
    """A view of the fleet may be asked for between two ticks."""
    budget = RestartBudget(RULES)
    budget.take_out("p", 0.0)

    assert budget.out_for_s("p", 300.1) == 0.0
    assert budget.any_back(300.2)
    assert not budget.any_back(300.3)


def test_status__units_are_there_and_take_no_models__says_so_beside_what_the_plan_says() -> None:
    """Who reads `add a unit` looks for one that is there."""
    world = World(catalog(catalog_model("a", replicas=3)), expected_units=3)
    for _ in range(3):
        world.start_unit()
    world.beat(20)
    world.loop._fleet._place_deaths.take_out(world.loop._fleet._places.of("u1"), world.now_s)
    cordon = Cordon(scope=CordonScope.UNIT, name="u2")
    world.loop.set_cordons(world.loop.cordons.having(cordon), "cordoned")
    world.want(catalog(catalog_model("a", replicas=3), "b", "c"))
    world.beat(20)

    told = world.loop.status(world.now_s).models[0].problem or ""
    assert "u1 is taken out for" in told
    assert "u2 is cordoned" in told
    assert "u3" not in told


@pytest.mark.parametrize("is_new_start", [False, True], ids=["applied", "before a new start"])
def test_deaths__model_that_is_held_back_is_mended_in_the_fleet_file__is_loaded_at_once(is_new_start: bool) -> None:
    """Nobody waits for five minutes with a file that is right now. The same file gives no new chance."""
    world = World(catalog("a"), expected_units=1)
    world.start_unit()
    world.beat(20)
    world.want(catalog("a", "poison"))
    world.loop._fleet.hold_back("poison", "units keep dying while they load it", world.now_s)
    world.want(catalog("a", "poison"))
    world.beat(20)
    world.hand_over()
    world.beat(20)
    assert not world.serving("poison")

    if is_new_start:
        world._catalog = catalog("a", catalog_model("poison", source="/mended"))
        world.hand_over()
    else:
        world.want(catalog("a", catalog_model("poison", source="/mended")))
    world.beat(20)

    assert world.serving("poison")
    assert world.serving("a")
