"""Units that hold fewer models than are asked for: who waits gets a place in time, by turns."""

from dataclasses import replace

import pytest
from crowded_fleet import HOLD_S, crowded
from fleet_model import SPEC, catalog, catalog_model

from deploy.control.control_rules import ControlRules
from deploy.control.model_turns import turn_length_s
from pdmux_actor.lease import ModelPhase
from placement.estimation.memory import resident_bytes
from placement.problem import Solver
from placement.solvers.memory_greedy import MemoryGreedySolver
from placement.solvers.search import SearchSolver

SOLVED_BY = pytest.mark.parametrize("solver", [SearchSolver(rounds=5), MemoryGreedySolver()], ids=["search", "greedy"])


@SOLVED_BY
def test_turn__place_is_held_by_a_model_that_nobody_asks_for_now__is_given_at_once(solver: Solver) -> None:
    crowd = crowded("a", "b", solver=solver)
    for _ in range(5):
        crowd.ask("a")
        crowd.come({}, for_s=3.0)
    assert crowd.world.serving("a")

    crowd.come({}, for_s=5.0)
    crowd.ask("b")
    crowd.come({}, for_s=6.0)

    assert len(crowd.waits_s["b"]) == 1
    assert crowd.waits_s["b"][0] <= 4.0
    assert any(d.endswith("; a gives up its place") for d in crowd.decided())


@SOLVED_BY
@pytest.mark.parametrize(("models", "units"), [("ab", 1), ("abcdefg", 1), ("abcdefghijkl", 3)])
def test_turns__all_models_are_asked_for_all_the_time__nobody_is_refused(
    models: str, units: int, solver: Solver
) -> None:
    crowd = crowded(*models, units=units, solver=solver)

    crowd.come({m: 0.5 if m == "a" else 0.05 for m in models}, for_s=200.0)

    assert sum(crowd.refused.values()) == 0, crowd.refused


@SOLVED_BY
def test_turns__answers_take_longer_than_turns__nobody_is_refused_and_all_come_to_their_ends(solver: Solver) -> None:
    crowd = crowded("a", "b", "c", solver=solver, runs_s=12.0)
    for _ in range(4):
        for model in "abc":
            crowd.ask(model)
        crowd.come({}, for_s=60.0)

    assert sum(crowd.refused.values()) == 0, crowd.refused
    assert {model: len(waits) for model, waits in crowd.waits_s.items()} == {"a": 4, "b": 4, "c": 4}


@SOLVED_BY
def test_turn__stream_does_not_end__gives_way_before_who_waits_is_refused_and_goes_on_later(solver: Solver) -> None:
    crowd = crowded("a", "b", solver=solver, runs_s=90.0)
    crowd.ask("a")
    crowd.come({}, for_s=10.0)
    crowd.runs_s = 2.0
    crowd.ask("b")
    crowd.come({}, for_s=HOLD_S)
    served_meanwhile = len(crowd.waits_s["b"])
    crowd.come({}, for_s=120.0)

    assert served_meanwhile == 1
    assert len(crowd.waits_s["a"]) == 1
    assert not crowd.refused
    lease = crowd.world.units["u1"].lease
    assert lease is not None
    assert lease.finish_s == {}, "what leaves later has the unit's own time"


@SOLVED_BY
def test_turns__one_model_always_has_a_place__the_others_take_turns_beside_it(solver: Solver) -> None:
    crowd = crowded(catalog_model("always"), *"abc", room=2, solver=solver)
    unserved = 0
    for _ in range(20):
        crowd.come(dict.fromkeys("abc", 0.2), for_s=5.0)
        unserved += not crowd.world.serving("always")

    assert unserved == 0
    assert sum(crowd.refused.values()) == 0, crowd.refused


@SOLVED_BY
def test_turns__pool_has_room_for_fewer_models_than_memory__nobody_is_refused(solver: Solver) -> None:
    crowd = crowded(*"abcde", room=8, blocks=300, solver=solver)

    crowd.come(dict.fromkeys("abcde", 0.2), for_s=100.0)

    assert len(crowd.world.units["u1"].ready()) < 4
    assert sum(crowd.refused.values()) == 0, crowd.refused


@SOLVED_BY
def test_turn__large_model_waits__as_many_small_ones_leave_as_it_takes(solver: Solver) -> None:
    large = replace(SPEC, num_layers=2 * SPEC.num_layers)
    assert resident_bytes(SPEC) < resident_bytes(large) <= 2 * resident_bytes(SPEC)
    crowd = crowded("a", "b", catalog_model("z", spec=large, sleeps_after_s=300.0), room=2, solver=solver)
    crowd.come({"a": 1.0, "b": 1.0}, for_s=20.0)
    assert crowd.world.serving("a")
    assert crowd.world.serving("b")

    crowd.ask("z")
    crowd.come({"a": 1.0, "b": 1.0}, for_s=HOLD_S)

    assert len(crowd.waits_s["z"]) == 1
    assert sum(crowd.refused.values()) == 0


@SOLVED_BY
def test_turn__large_model_waits_and_one_of_two_small_ones_is_idle__both_leave_for_it(solver: Solver) -> None:
    large = replace(SPEC, num_layers=2 * SPEC.num_layers)
    crowd = crowded("a", "b", catalog_model("z", spec=large, sleeps_after_s=300.0), room=2, solver=solver)
    crowd.ask("b")
    crowd.come({"a": 1.0}, for_s=20.0)
    crowd.ask("z")
    crowd.come({"a": 1.0}, for_s=3.0)
    soon = crowd.world.serving("a")
    crowd.come({"a": 1.0}, for_s=HOLD_S - 3.0)

    assert soon, "a is in use and gives way after a turn"
    assert len(crowd.waits_s["z"]) == 1
    assert sum(crowd.refused.values()) == 0


@SOLVED_BY
def test_turn__room_is_there_beside_a_model_that_leaves_slowly__is_taken_at_once(solver: Solver) -> None:
    crowd = crowded(*"abcd", room=2, solver=solver, runs_s=90.0)
    crowd.ask("a")
    crowd.runs_s = 1.0
    crowd.come({"b": 1.0}, for_s=15.0)
    crowd.ask("c")  # a is asked for least, gives way, and its stream has until c has waited for long
    crowd.come({"b": 1.0}, for_s=9.0)
    assert [m for m in "abc" if crowd.world.serving(m)] == ["b"]

    crowd.come({}, for_s=3.0)
    crowd.ask("d")
    crowd.come({}, for_s=4.0)

    assert crowd.waits_s.keys() & {"c", "d"}, "nobody uses b, and its place is room enough"
    assert "a" in crowd.world.units["u1"].phases, "it is still leaving"


def test_turn__other_models_have_several_replicas__one_of_them_makes_room() -> None:
    both = catalog_model("a", sleeps_after_s=300.0, replicas=2)
    crowd = crowded(both, "b", units=2, solver=MemoryGreedySolver())
    crowd.come({"a": 2.0}, for_s=20.0)
    crowd.ask("b")
    crowd.come({"a": 2.0}, for_s=HOLD_S)

    assert len(crowd.waits_s["b"]) == 1
    assert len(crowd.world.serving("a")) == 1


def test_turn__only_requests_of_low_priority_wait__have_a_place_that_nobody_used_for_long() -> None:
    crowd = crowded("a", "b", solver=MemoryGreedySolver())
    crowd.ask("a")
    crowd.come({"a": 0.5}, for_s=60.0)
    crowd.world.held_low["b"] = 1
    crowd.ask("b")
    crowd.come({"a": 0.5}, for_s=HOLD_S - 5.0)
    during = crowd.world.serving("b")
    crowd.come({}, for_s=3.0)
    soon = crowd.world.serving("b")
    for _ in range(3):
        crowd.ask("b")
        crowd.come({}, for_s=24.0)

    assert (during, soon) == ([], [])
    assert "b" in crowd.waits_s


@pytest.mark.parametrize("low", [True, False])
def test_turn__requests_of_low_priority_alone_use_a_place__gives_way_at_once(low: bool) -> None:
    crowd = crowded("a", "b", solver=MemoryGreedySolver(), runs_s=90.0)
    crowd.ask("a")
    crowd.world.held_low["a"] = int(low)
    crowd.come({}, for_s=4.0)
    unit = crowd.world.units["u1"]
    unit.giving_way["a"] = int(low)
    crowd.come({}, for_s=1.0)
    crowd.runs_s = 1.0
    crowd.ask("b")
    crowd.come({}, for_s=4.5)

    assert bool(crowd.waits_s.get("b")) is low
    assert ("a" in unit.ready()) is not low


def test_turn__no_unit_could_ever_hold_it__nobody_leaves_for_it() -> None:
    huge = replace(SPEC, num_layers=64 * SPEC.num_layers)
    crowd = crowded("a", catalog_model("z", spec=huge, sleeps_after_s=300.0), solver=MemoryGreedySolver())
    crowd.ask("a")
    crowd.come({}, for_s=10.0)
    crowd.ask("z")
    crowd.come({}, for_s=20.0)

    assert crowd.world.serving("a")
    assert len(crowd.decided()) <= 8, "it is not tried all the time"
    states = {m.model: m for m in crowd.world.loop.status(crowd.world.now_s).models}
    assert "MiB" in (states["z"].problem or "")


@SOLVED_BY
@pytest.mark.parametrize("room", [1, 2])
def test_turns__one_model_does_not_load__the_others_are_served_and_it_is_not_tried_all_the_time(
    room: int, solver: Solver
) -> None:
    crowd = crowded(*"abc", room=room, solver=solver)
    crowd.world.units["u1"].broken = frozenset("c")

    crowd.come(dict.fromkeys("abc", 0.3), for_s=200.0)

    assert crowd.refused.keys() == {"c"}
    assert len(crowd.waits_s["a"]) + len(crowd.waits_s["b"]) > 80
    assert sum("c gives up its place" in d for d in crowd.decided()) <= ControlRules().max_deaths
    states = {m.model: m for m in crowd.world.loop.status(crowd.world.now_s).models}
    assert "it did not load in its turns: its weights are cut short" in (states["c"].problem or "")
    view = crowd.world.loop.fleet_view(crowd.world.now_s)
    assert view is not None
    assert {card.model for card in view.models if "its weights are cut short" in card.problem} == {"c"}, (
        "gateways say why at once"
    )


@SOLVED_BY
def test_turns__model_has_none_now__is_asleep_and_lacks_nothing(solver: Solver) -> None:
    crowd = crowded("a", "b", solver=solver)
    crowd.come({"a": 1.0, "b": 1.0}, for_s=20.0)

    crowd.come({}, for_s=10.0)
    states = crowd.world.loop.status(crowd.world.now_s).models

    assert sorted(m.state for m in states) == ["asleep", "ready"]
    assert [m.problem for m in states] == [None, None]


@pytest.mark.parametrize(("load_s", "least_served"), [(1.0, 0.9), (2.0, 0.75), (5.0, 0.4), (15.0, 0.15), (25.0, 0.1)])
def test_turns__loads_take_long__places_serve_and_do_not_only_load(load_s: float, least_served: float) -> None:
    crowd = crowded(*"abcdefg", solver=MemoryGreedySolver(), load_s=load_s, runs_s=5.0)

    crowd.come({m: 0.5 if m == "a" else 0.1 for m in "abcdefg"}, for_s=250.0)
    crowd.come({}, for_s=100.0)

    served, refused = sum(map(len, crowd.waits_s.values())), sum(crowd.refused.values())
    assert served >= least_served * (served + refused)


@SOLVED_BY
def test_turn__all_that_waited_for_it_have_left__does_not_happen_and_nobody_is_put_out(solver: Solver) -> None:
    crowd = crowded("a", "b", solver=solver, runs_s=40.0)
    crowd.ask("a")
    crowd.come({}, for_s=10.0)
    crowd.ask("b")
    crowd.come({}, for_s=8.0)
    gives_way = crowd.world.units["u1"].phases["a"]
    crowd.streams = [s for s in crowd.streams if s.model != "b"]
    crowd.come({}, for_s=40.0)

    assert gives_way is ModelPhase.DRAINING
    assert [model for _, model in crowd.world.units["u1"].loaded] == ["a"]
    assert max(crowd.waits_s["a"]) <= 2.0, "it was not cut"


def test_turn__who_waited_has_left_and_who_gives_way_is_removed_from_the_fleet__fleet_is_led_on() -> None:
    crowd = crowded("a", "b", solver=MemoryGreedySolver(), runs_s=40.0)
    crowd.ask("a")
    crowd.come({}, for_s=10.0)
    crowd.ask("b")
    crowd.come({}, for_s=8.0)
    assert crowd.world.units["u1"].phases["a"] is ModelPhase.DRAINING

    crowd.world.want(catalog(catalog_model("b", sleeps_after_s=300.0)))
    crowd.streams = [s for s in crowd.streams if s.model != "b"]
    crowd.come({}, for_s=HOLD_S)

    assert crowd.world.serving("b")


@SOLVED_BY
def test_turn__who_waited_leaves_while_its_model_loads__place_goes_to_others_before_it_is_ready(solver: Solver) -> None:
    crowd = crowded("b", "c", solver=solver, load_s=15.0)
    crowd.ask("b")
    crowd.come({}, for_s=2.0)
    crowd.streams.clear()
    crowd.ask("c")
    crowd.come({}, for_s=25.0)

    assert len(crowd.waits_s["c"]) == 1
    assert [model for _, model in crowd.world.units["u1"].loaded] == ["c"]


def test_place__its_model_falls_asleep_before_one_that_was_asked_for_later__memory_holds_one_at_a_time() -> None:
    crowd = crowded("a", "b", solver=MemoryGreedySolver())
    crowd.ask("a")
    crowd.come({}, for_s=2.5)
    crowd.ask("b")
    crowd.come({}, for_s=0.5)
    crowd.streams.clear()
    crowd.come({}, for_s=310.0)  # the fleet's model fails on a lease that names more than fits

    assert crowd.world.serving("a") == []


@SOLVED_BY
def test_unit__comes_in_place_of_one_that_was_lost__whose_requests_have_waited_longest_is_there_first(
    solver: Solver,
) -> None:
    crowd = crowded("a", "b", solver=solver)
    crowd.come({"a": 1.0}, for_s=20.0)
    crowd.ask("b")
    crowd.come({"a": 1.0}, for_s=0.5)
    lost = crowd.world.units["u1"]
    crowd.world.kill_unit("u1")
    crowd.come({"a": 1.0}, for_s=20.0)
    crowd.world.start_unit(memory_bytes=lost.memory_bytes)
    crowd.come({"a": 1.0}, for_s=4.0)

    assert crowd.waits_s.get("b")
    assert not crowd.refused


@SOLVED_BY
def test_turn__model_is_downloaded_for_long__others_have_its_place_and_it_comes_afterwards(solver: Solver) -> None:
    crowd = crowded("a", "b", solver=solver)
    crowd.world.units["u1"].download_s["b"] = 60.0
    served_meanwhile = 0
    for seed in range(10):
        crowd.ask("b")
        crowd.come({"a": 0.5}, for_s=6.0, seed=seed)
        served_meanwhile += bool(crowd.world.serving("a"))
    crowd.come({"a": 0.5, "b": 0.5}, for_s=40.0)

    assert served_meanwhile >= 8
    assert "a" not in crowd.refused
    assert max(crowd.waits_s["a"]) <= 8.0
    assert len(crowd.waits_s["b"]) >= 10


@pytest.mark.parametrize(("models", "runs_s", "least_served"), [("ab", 25.0, 0.99), ("abc", 10.0, 0.75)])
def test_turns__all_is_many_times_slower_than_units_tell__answers_come_to_their_ends(
    models: str, runs_s: float, least_served: float
) -> None:
    crowd = crowded(*models, solver=MemoryGreedySolver(), runs_s=runs_s)
    crowd.world.units["u1"].wake_s = 6.0  # it tells a tenth of a second

    crowd.come(dict.fromkeys(models, 0.2), for_s=300.0)
    crowd.come({}, for_s=200.0)

    served, refused = sum(map(len, crowd.waits_s.values())), sum(crowd.refused.values())
    assert not crowd.streams
    assert served >= least_served * (served + refused)


def test_turn_length__many_wait__all_come_to_their_places_within_hold_s() -> None:
    rules = ControlRules(hold_s=60.0)

    assert turn_length_s(1, 1, rules) == 10.0
    assert 2 * turn_length_s(9, 3, rules) * (9 + 3) / 3 == 40.0
    assert turn_length_s(1, 1, ControlRules(hold_s=6000.0)) == rules.min_residency_s


def test_turn_length__loads_take_time__leaves_it_to_them_as_long_as_all_come_in_time_and_is_half_of_one_else() -> None:
    rules = ControlRules(hold_s=60.0)

    assert turn_length_s(1, 1, rules, load_s=10.0) == 10.0
    assert turn_length_s(1, 1, rules, load_s=14.0) == 8.0
    assert turn_length_s(1, 1, rules, load_s=40.0) == 20.0
