"""Weights are loaded for demand that is forecast, and are the first to make room for what is asked for."""

from fleet_model import World, catalog, catalog_model
from test_moves import AT_ONCE, room_for

from deploy.control.pool_scaling import ScaledPool
from placement.scaling.scaling_rules import ScalingRules
from placement.scaling.seasonal_forecast import Season

LOOKS = 40
OFTEN, SELDOM_PER_S = 1.0, 0.001


def world_with(rate_per_s: float, *, room: int) -> World:
    """`rare` and `other` may be scaled to zero; `rare` was asked for at all times of the days before."""
    season = Season(season_s=86400.0, rates_per_s={"rare": (rate_per_s,) * 96}, seen=(3,) * 96)
    rules = ScalingRules(least_nodes=1, most_nodes=2, forecast=season, shadow=True)
    world = World(
        catalog("a", catalog_model("rare", sleeps_after_s=30.0), catalog_model("other", sleeps_after_s=30.0)),
        expected_units=1,
        rules=AT_ONCE,
        scaling={"p": ScaledPool(rules=rules, units_per_node=1)},
    )
    world.start_unit(memory_bytes=room_for(room))
    world.beat(LOOKS, asks={"a": 1})
    return world


def test_prewarming__model_is_forecast_to_be_asked_for__is_loaded_before_anybody_does() -> None:
    world = world_with(OFTEN, room=3)

    assert world.serving("rare")
    assert any("requests are forecast for rare" in reason for reason in world.decided("plan"))
    assert not world.serving("other")


def test_prewarming__hardly_anybody_is_forecast__stays_asleep() -> None:
    assert not world_with(SELDOM_PER_S, room=3).serving("rare")


def test_prewarming__another_model_is_asked_for_and_has_no_room__takes_the_place() -> None:
    world = world_with(OFTEN, room=2)
    assert world.serving("rare")

    world.beat(LOOKS, asks={"a": 1, "other": 1})

    assert world.serving("other")
    assert world.serving("a")
    assert not world.serving("rare")


def test_prewarming__it_has_no_room__nothing_gives_way_to_it() -> None:
    world = world_with(OFTEN, room=1)

    assert world.serving("a")
    assert not world.serving("rare")
