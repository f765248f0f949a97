"""Weights are loaded for demand that is forecast, and are the first to make room for what is asked for."""

from pathlib import Path

from fleet_model import World, catalog, catalog_model
from test_moves import AT_ONCE, room_for

from deploy.control.pool_scaling import ScaledPool
from deploy.fleet_file.settings import parse_fleet_file
from deploy.simulation.control import LoadTimes
from deploy.simulation.deployments import Deployment, deploy_fleet
from deploy.simulation.runs import RunOptions, run_fleet
from deploy.simulation.streams import RequestStream
from placement.scaling.pool_size import ScalingRules
from placement.scaling.seasonal_forecast import Season
from router.limits import GatewayLimits
from traces.record import TraceRecord

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

    world.held["other"] = 1
    world.beat(LOOKS, asks={"a": 1, "other": 1})

    assert world.serving("other")
    assert world.serving("a")
    assert not world.serving("rare")


def test_prewarming__it_has_no_room__nothing_gives_way_to_it() -> None:
    world = world_with(OFTEN, room=1)

    assert world.serving("a")
    assert not world.serving("rare")


SEASON_S = 300.0
FLEET = """
name: seasons
models:
  - {id: a, source: ./models/llama-3.1-8b, max_model_len: 8192, slo: {ttft_s: 2.0, tbt_s: 0.2},
     demand: {rate_per_s: 1.0, prompt_tokens: 1000, output_tokens: 4}}
  - {id: rare, source: ./models/llama-3.1-8b, max_model_len: 8192, slo: {ttft_s: 2.0, tbt_s: 0.2},
     replicas: {min: 0, max: 2, idle_after_s: 30}, demand: {rate_per_s: 0.1, prompt_tokens: 1000, output_tokens: 4}}
pools:
  - {name: p, device: simulated, gpu_type: A40, kv_memory: 6GiB, device_memory: 44GiB, host_memory: 0,
     nodes: {min: 1, max: 2}, scaling: {provision_s: 20 FORECAST}}
placement: {solver: memory_greedy, replan_every_s: 5, min_residency_s: 5}
"""


def rare_in_time(forecast: str) -> int:
    """Of two seasons: `a` is asked for all the time, `rare` for half a minute of each."""
    wanted = FLEET.replace(" FORECAST", forecast)
    fleet = parse_fleet_file(wanted, name="seasons.yaml", base=Path(__file__).parents[2] / "examples")
    asked = [(0.5 * i, "a") for i in range(int(4 * SEASON_S))]
    asked += [(season * SEASON_S + 200 + i, "rare") for season in range(2) for i in range(30)]
    records = [TraceRecord(arrival_s=t, input_tokens=1000, output_tokens=4, model=m) for t, m in sorted(asked)]
    stream = RequestStream(
        name="seasons", records=lambda: iter(records), block_tokens=None, count=len(records), span_s=2 * SEASON_S
    )
    deployed = deploy_fleet(fleet, Deployment(name="mux", policy="mux"), loads=LoadTimes())
    outcome = run_fleet(deployed, stream, RunOptions(limits=GatewayLimits(hold_s=30.0), gateways=1))
    return outcome.models["rare"].attained


def test_prewarming__second_season_of_a_model_that_sleeps__its_first_requests_are_in_time() -> None:
    without, foreseen = rare_in_time(""), rare_in_time(f", forecast: {{season_s: {SEASON_S}}}")

    assert without <= 60 - 2 * 6  # it takes 8 s to load
    assert foreseen >= without + 6
