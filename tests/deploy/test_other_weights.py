"""What the control loop says of models that were given other weights."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from fleet_model import BLOCK_BYTES, SPEC, TOTAL_BLOCKS, World, adapter_model, catalog, catalog_model

from deploy.control.fleet_costs import FleetCosts
from deploy.control.planner import PlanAnswer, Planner, PlannerInPlace, PlanTask
from deploy.fleet_file.model_catalog import CatalogModel
from deploy.fleet_file.model_section import ReplicasSection, SloSection
from pdmux_actor.lease import ModelPhase
from placement.estimation.memory import resident_bytes
from placement.solvers.memory_greedy import MemoryGreedySolver


def ready_by_status(world: World) -> set[str]:
    return {m.model for m in world.loop.status(world.now_s).models if m.is_as_asked}


def told_by_status(world: World, model: str = "a") -> str:
    return next(m.weights_told for m in world.loop.status(world.now_s).models if m.model == model)


def sources(world: World, model: str = "a") -> list[str]:
    """Those of the units that serve it, by unit."""
    return [u.origins[model].source for u in world.units.values() if model in u.ready()]


class LatePlanner(PlannerInPlace):
    """Answers seconds after it was asked, as one in a process of its own does."""

    def __init__(self) -> None:
        super().__init__(MemoryGreedySolver(), FleetCosts().estimator)
        self._looks = 0

    def ask(self, task: PlanTask) -> None:
        super().ask(task)
        self._looks = 0

    def answer(self) -> PlanAnswer | None:
        self._looks += 1
        return super().answer() if self._looks > 20 else None


PLANNERS = pytest.mark.parametrize("planner", [lambda: None, LatePlanner], ids=["at once", "late"])


def fleet_of(units: int, planner: Planner | None = None) -> World:
    """Has a replica of model a on each unit."""
    world = World(catalog(catalog_model("a", replicas=units)), expected_units=units, planner=planner)
    for _ in range(units):
        world.start_unit()
    world.beat(20)
    assert sources(world) == ["/m"] * units
    return world


def beats_until_changed(world: World, *, source: str = "/other", at_least: int) -> int:
    """Returns how many beats it took until no unit serves anything else."""
    for beats in range(200):
        served = sources(world)
        assert len(served) >= at_least, f"beat {beats}: {served}"
        if set(served) == {source} and world.loop.status(world.now_s).models[0].is_as_asked:
            return beats
        world.beat()
    raise AssertionError(f"not changed: {sources(world)}")


@PLANNERS
def test_change__two_replicas__one_serves_at_any_time(planner: Callable[[], Planner | None]) -> None:
    world = fleet_of(2, planner())
    world.beat(130)  # they have stayed long enough to be moved
    moves = world.decided("move")
    world.want(catalog(catalog_model("a", replicas=2, source="/other")))
    beats_until_changed(world, at_least=1)
    world.beat(5)
    assert sources(world) == ["/other"] * 2
    assert len(world.decided("move")) == len(moves), "nothing leaves its unit"


def test_change__of_many_replicas__a_quarter_at_once() -> None:
    world = fleet_of(8)
    world.want(catalog(catalog_model("a", replicas=8, source="/other")))
    assert beats_until_changed(world, at_least=6) < 8 * 3, "two at a time"
    world.beat(5)
    assert sources(world) == ["/other"] * 8


def test_change__is_told_how_far_it_is() -> None:
    world = fleet_of(2)
    assert told_by_status(world) == ""
    world.want(catalog(catalog_model("a", replicas=2, source="/other")))
    told = [told_by_status(world)]
    while ready_by_status(world) != {"a"}:
        world.beat()
        told += [told_by_status(world)] if told_by_status(world) != told[-1] else []
    assert told == [f"{n} of 2 replicas have the new weights" for n in (0, 1)] + [""]
    assert len(world.decided("weights")) == 2


def test_change__to_weights_that_do_not_load__the_others_serve_on() -> None:
    world = fleet_of(3)
    for unit in world.units.values():
        unit.broken = frozenset("a")
    world.want(catalog(catalog_model("a", replicas=3, source="/broken")))
    world.beat(60)
    assert sources(world) == ["/m"] * 2
    assert "a" not in ready_by_status(world)

    world.want(catalog(catalog_model("a", replicas=3)))
    world.beat(1)
    assert sources(world) == ["/m"] * 2, "what they have is what is wanted again"


def test_change__to_a_checkpoint_that_cannot_be_read__waits_until_it_can() -> None:
    world = fleet_of(2)
    world.want(catalog(catalog_model("a", replicas=2, source="/other", spec=None)))
    world.beat(20)
    assert sources(world) == ["/m"] * 2
    world.want(catalog(catalog_model("a", replicas=2, source="/other")))
    beats_until_changed(world, at_least=1)


def test_change__control_loop_restarts_meanwhile__goes_on_one_by_one() -> None:
    world = fleet_of(4)
    world.want(catalog(catalog_model("a", replicas=4, source="/other")))
    while "/other" not in sources(world):
        world.beat()
    world.restart_control_loop()
    beats_until_changed(world, at_least=3)
    world.hand_over()
    world.beat(10)
    assert sources(world) == ["/other"] * 4


def test_change__unit_dies_meanwhile__its_successor_has_the_new_weights_and_one_serves_at_any_time() -> None:
    world = fleet_of(3)
    world.want(catalog(catalog_model("a", replicas=3, source="/other")))
    while "/other" not in sources(world):
        world.beat()
    old = next(u for u in world.units.values() if u.origins["a"].source == "/m" and "a" in u.ready())
    world.kill_unit(old.unit_id)
    world.start_unit()
    beats_until_changed(world, at_least=1)


@pytest.mark.parametrize("another_comes", [True, False], ids=["another comes", "none comes"])
def test_change__the_unit_that_was_changed_dies__the_replica_left_serves_until_another_is_there_for_a_while(
    another_comes: bool,
) -> None:
    """It let its weights go at once, for a plan had just found no unit beside it."""
    world = fleet_of(2)
    world.want(catalog(catalog_model("a", replicas=2, source="/other")))
    while "/other" not in sources(world):
        world.beat()
    changed = next(u for u in world.units.values() if u.origins["a"].source == "/other")
    world.kill_unit(changed.unit_id)
    for _ in range(40):
        world.beat()
        assert sources(world) == ["/m"]
    if another_comes:
        world.start_unit()
        beats_until_changed(world, at_least=1)
    else:
        world.beat(400)
        assert sources(world) == ["/other"]


@PLANNERS
def test_change__only_replica_and_room_for_another__the_new_one_comes_first(
    planner: Callable[[], Planner | None],
) -> None:
    world = World(catalog("a", "b"), expected_units=2, planner=planner())
    for _ in range(2):
        world.start_unit()
    world.beat(20)
    world.want(catalog(catalog_model("a", source="/other"), "b"))
    beats_until_changed(world, at_least=1)
    world.beat(200)
    assert sources(world) == ["/other"], "there is one as before"
    assert world.loop.status(world.now_s).models[0].problem is None


@PLANNERS
def test_change__only_replica_and_no_room_for_another__is_made_without(planner: Callable[[], Planner | None]) -> None:
    world = World(catalog("a", "b"), expected_units=2, planner=planner())
    for _ in range(2):
        world.start_unit(memory_bytes=TOTAL_BLOCKS * BLOCK_BYTES + resident_bytes(SPEC, 1) * 3 // 2)
    world.beat(20)
    assert sources(world) == ["/m"]
    home = world.serving("a")
    world.want(catalog(catalog_model("a", source="/other"), "b"))
    problems = set()
    for _ in range(40):
        world.beat()
        problems.add(world.loop.status(world.now_s).models[0].problem)
    assert (sources(world), world.serving("a"), problems) == (["/other"], home, {None})


def test_change__only_replica__new_weights_that_do_not_load__the_old_ones_serve_on() -> None:
    world = World(catalog("a", "b"), expected_units=2)
    for _ in range(2):
        world.start_unit()
    world.beat(20)
    for unit in world.units.values():
        unit.broken = frozenset("a")
    world.want(catalog(catalog_model("a", source="/broken"), "b"))
    world.beat(100)
    assert sources(world) == ["/m"]
    assert told_by_status(world)


def test_change__of_an_adapter__one_unit_has_it_at_any_time() -> None:
    base = catalog_model("a", replicas=2)
    world = World(catalog(base, adapter_model("sql", base)), expected_units=2)
    for _ in range(2):
        world.start_unit()
    world.beat(20)
    assert sources(world, "sql") == ["/adapters/sql"] * 2
    world.want(catalog(base, adapter_model("sql", base, adapter="/adapters/newer")))
    for _ in range(20):
        world.beat()
        assert sources(world, "sql")
        assert sources(world) == ["/m"] * 2
    assert sources(world, "sql") == ["/adapters/newer"] * 2


def test_change__of_a_base__its_adapters_come_with_it_and_new_ones_wait_for_it() -> None:
    base, newer = catalog_model("a", replicas=2), catalog_model("a", replicas=2, source="/other")
    world = World(catalog(base, adapter_model("sql", base)), expected_units=2)
    for _ in range(2):
        world.start_unit()
    world.beat(20)
    world.want(catalog(newer, adapter_model("sql", newer, adapter="/newer"), adapter_model("law", newer)))
    for _ in range(20):
        world.beat()
        assert sources(world)
        for lease in (u.lease for u in world.units.values()):
            named = {a.model: a.source for a in lease.models}
            assert named in (
                {"a": "/m", "sql": "/adapters/sql"},
                {"a": "/other", "sql": "/newer", "law": "/adapters/law"},
            )
    assert sources(world, "law") == ["/adapters/law"] * 2


def test_sleeper__of_weights_that_the_model_had__is_forgotten_and_never_woken() -> None:
    world = World(catalog(catalog_model("a", sleeps_after_s=5.0), "b"), expected_units=1)
    unit = world.start_unit()
    unit.host_memory_bytes = 2**30
    world.waiting["a"] = 1
    world.beat(10, asks={"a": 1})
    world.waiting["a"] = 0
    world.beat(40)
    assert unit.asleep == {"a"}

    world.want(catalog(catalog_model("a", sleeps_after_s=5.0, source="/other"), "b"))
    world.beat(3)
    assert {(a.model, a.source) for a in unit.lease.asleep} <= {("a", "/other")}, "what else sleeps there is forgotten"


def test_status__model_gets_other_weights__is_ready_again_when_its_unit_has_taken_them() -> None:
    """Else `muxfleet apply` would say that it is done before anybody has looked at them."""
    world = World(catalog(catalog_model("a"), "b"), expected_units=1)
    unit = world.start_unit()
    world.beat(10)
    assert ready_by_status(world) == {"a", "b"}

    world.want(catalog(catalog_model("a", source="/other"), "b"))
    assert ready_by_status(world) == {"b"}
    world.beat()  # its report is of before, and is answered with the new lease
    assert ready_by_status(world) == {"b"}
    unit.broken = frozenset("a")
    world.beat(3)
    assert ready_by_status(world) == {"b"}

    unit.broken = frozenset()
    unit.phases["a"] = ModelPhase.LOADING  # it tries again
    world.beat(3)
    assert ready_by_status(world) == {"a", "b"}


def test_status__base_gets_other_weights__its_adapter_is_not_ready_either() -> None:
    world = World(catalog(base := catalog_model("a"), adapter_model("sql", base)), expected_units=1)
    world.start_unit()
    world.beat(10)
    assert ready_by_status(world) == {"a", "sql"}

    world.want(catalog(base := catalog_model("a", source="/other"), adapter_model("sql", base)))
    assert ready_by_status(world) == set()
    world.beat(6)
    assert ready_by_status(world) == {"a", "sql"}


def test_status__control_loop_restarts__models_are_ready_as_before() -> None:
    world = World(catalog("a", "b"), expected_units=1)
    world.start_unit()
    world.beat(10)

    world.restart_control_loop()
    for _ in range(6):
        world.beat()
        assert ready_by_status(world) == {"a", "b"}


def test_card__weights_of_a_model_or_of_its_base__name_what_is_served_and_nothing_else() -> None:
    """By them gateways know that an answer was begun by others."""
    base = catalog_model("a")
    adapter = adapter_model("sql", base)

    def named(model: CatalogModel, **settings: object) -> tuple[str | None, ...]:
        return replace(model, settings=model.settings.model_copy(update=settings)).card().weights

    assert named(base, slo=SloSection(ttft_s=9.0), replicas=ReplicasSection(max=3), max_model_len=64) == named(base)
    for changed in ({"source": "/other"}, {"revision": "v2"}, {"weights": "int8"}):
        assert named(base, **changed) != named(base)
        assert adapter_model(
            "sql", replace(base, settings=base.settings.model_copy(update=changed))
        ).card().weights != (adapter.card().weights)
    assert replace(base, dtype="float16").card().weights != base.card().weights
    assert named(adapter, source="/adapters/other") != adapter.card().weights
