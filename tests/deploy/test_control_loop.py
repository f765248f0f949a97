import dataclasses

import hypothesis.strategies as st
from fleet_model import BLOCK_BYTES, HEARTBEAT_S, SPEC, World, catalog, catalog_model
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from deploy.control.control_rules import ControlRules, ControlTiming
from pdmux_actor.lease import QUIET_HEARTBEAT_S, ModelPhase, ModelStatus
from placement.estimation.memory import resident_bytes

TIMING = ControlTiming()
EXPIRY_BEATS = int(TIMING.expiry_s / HEARTBEAT_S) + 2
SETTLE_BEATS = int(TIMING.settle_s / HEARTBEAT_S) + 2
RESIDENCY_BEATS = int(ControlRules().min_residency_s / HEARTBEAT_S) + 2


def test_heartbeat__first_unit_of_one__is_leased_all_models_at_once() -> None:
    world = World(catalog("a", "b", "c"), expected_units=1)
    unit = world.start_unit()

    world.beat()

    assert unit.lease is not None
    assert {a.model for a in unit.lease.models} == {"a", "b", "c"}
    assert unit.lease.stream_token == "t"
    assert all(a.quota_blocks > 0 and a.source == "/m" for a in unit.lease.models)


def test_heartbeat__unit_without_a_pool__is_leased_one_of_what_its_models_leave() -> None:
    world = World(catalog("a", "b"), expected_units=2)
    units = [world.start_unit(sizes_pool=True, total_blocks=0) for _ in range(2)]

    world.beat(20)

    (size,) = {unit.lease.pool_blocks for unit in units if unit.lease is not None}
    assert [unit.total_blocks for unit in units] == [size, size]
    beside_bytes = units[0].memory_bytes - size * BLOCK_BYTES
    assert resident_bytes(SPEC) <= beside_bytes < 3 * resident_bytes(SPEC)
    for unit in units:
        assert unit.lease is not None
        assert 0 < sum(a.quota_blocks for a in unit.lease.models) <= size


def test_heartbeat__control_loop_restarts__pool_keeps_its_size() -> None:
    world = World(catalog("a"), expected_units=1)
    unit = world.start_unit(sizes_pool=True, total_blocks=0)
    world.beat(20)
    size = unit.total_blocks

    world.restart_control_loop()
    world.beat(20)

    assert unit.lease is not None
    assert unit.lease.pool_blocks == unit.total_blocks == size


def test_heartbeat__nothing_new__repeats_the_lease() -> None:
    world = World(catalog("a"), expected_units=1)
    unit = world.start_unit()
    world.beat(20)

    assert len([v for u, v in world.leases if u == unit.unit_id]) == 1


def test_heartbeat__first_of_two_units__waits_for_the_other_before_models_are_placed() -> None:
    world = World(catalog("a", "b"), expected_units=2)
    first = world.start_unit()
    world.beat()
    assert first.lease is not None
    assert first.lease.models == ()

    second = world.start_unit()
    world.beat(3)

    assert len(first.ready()) == len(second.ready()) == 1


def test_heartbeat__second_unit_never_comes__places_all_on_the_first_after_a_while() -> None:
    world = World(catalog("a", "b"), expected_units=2)
    unit = world.start_unit()

    world.beat(SETTLE_BEATS + 2)

    assert unit.ready() == {"a", "b"}


def test_heartbeat__unit_restarts_under_a_new_id__gets_the_models_without_waiting_for_expiry() -> None:
    world = World(catalog("a", "b"), expected_units=1)
    old = world.start_unit()
    world.beat(5)
    world.kill_unit(old.unit_id)
    world.now_s += TIMING.quiet_s + 0.1

    new = world.start_unit()
    world.beat(2)

    assert new.ready() == {"a", "b"}


def test_heartbeat__another_unit_comes_while_those_at_rest_are_late__takes_nobodys_place() -> None:
    world = World(catalog("a", "b"), expected_units=2)
    units = [world.start_unit(), world.start_unit()]
    world.beat(3)
    before = [unit.ready() for unit in units]

    world.now_s += QUIET_HEARTBEAT_S + 0.7
    third = world.start_unit()
    world.loop.heartbeat(third.report(), world.now_s)

    assert {u.report.unit_id for u in world.loop.status(world.now_s).units} >= {unit.unit_id for unit in units}
    world.beat(3)
    assert [unit.ready() for unit in units] == before


def test_heartbeat__one_of_two_units_dies__its_models_move_to_the_other() -> None:
    world = World(catalog("a", "b"), expected_units=2)
    units = [world.start_unit(), world.start_unit()]
    world.beat(3)
    world.kill_unit(units[0].unit_id)

    world.beat(EXPIRY_BEATS)

    assert units[1].ready() == {"a", "b"}


def test_heartbeat__unit_leaves__its_models_move_at_once_and_it_keeps_its_lease() -> None:
    world = World(catalog("a", "b"), expected_units=2)
    leaving, staying = world.start_unit(), world.start_unit()
    world.beat(3)
    before = leaving.lease

    leaving.is_leaving = True
    world.beat(3)

    assert staying.ready() == {"a", "b"}
    assert leaving.lease == before


def test_heartbeat__replacement_of_a_leaving_unit__gets_its_models() -> None:
    world = World(catalog("a", "b"), expected_units=1)
    old = world.start_unit()
    world.beat(3)
    old.is_leaving = True
    world.beat()

    new = world.start_unit()
    world.beat(2)

    assert new.ready() == {"a", "b"}


def test_heartbeat__control_loop_restarts__units_keep_what_they_serve_throughout() -> None:
    world = World(catalog("a", "b", "c", "d"), expected_units=2)
    units = [world.start_unit(), world.start_unit()]
    world.beat(3)
    before = {u.unit_id: u.ready() for u in units}
    assert all(before.values())

    world.restart_control_loop()
    for _ in range(SETTLE_BEATS):
        world.beat()
        assert {u.unit_id: u.ready() for u in units} == before


def test_heartbeat__control_loop_restarts_while_a_unit_is_silent__its_models_are_not_given_away() -> None:
    world = World(catalog("a", "b"), expected_units=2)
    units = [world.start_unit(), world.start_unit()]
    world.beat(3)
    before = {u.unit_id: u.ready() for u in units}

    world.restart_control_loop()
    world.beat(8, silent=frozenset({units[0].unit_id}))
    assert units[1].ready() == before[units[1].unit_id]
    world.beat(4)

    assert {u.unit_id: u.ready() for u in units} == before


def test_heartbeat__control_loop_restarts__versions_go_on_above_the_units_own() -> None:
    world = World(catalog("a"), expected_units=1)
    unit = world.start_unit()
    world.beat(2)
    assert unit.lease is not None
    unit.lease = dataclasses.replace(unit.lease, version=10**15)  # its clock was ahead

    world.restart_control_loop()
    world.want(catalog("a", "b"))
    world.beat(3)

    assert unit.lease.version > 10**15
    assert unit.ready() == {"a", "b"}


def test_heartbeat__model_leaves_the_catalog__leaves_the_lease() -> None:
    world = World(catalog("a", "b"), expected_units=1)
    unit = world.start_unit()
    world.beat(3)

    world.want(catalog("b"))
    world.beat()

    assert unit.ready() == {"b"}


def test_heartbeat__policy_changes__lease_says_so_and_models_stay() -> None:
    world = World(catalog("a"), expected_units=1)
    unit = world.start_unit()
    world.beat(3)

    world.want(catalog("a", policy="prefill_first"))
    world.beat()

    assert unit.lease is not None
    assert unit.lease.policy == "prefill_first"
    assert unit.ready() == {"a"}


def test_heartbeat__shape_of_a_served_model_becomes_unknown__it_stays_where_it_is() -> None:
    world = World(catalog("a", "b"), expected_units=1)
    unit = world.start_unit()
    world.beat(3)

    world.restart_control_loop()
    world.want(catalog(catalog_model("a", spec=None), "b"))
    world.beat(3)

    assert unit.ready() == {"a", "b"}


def test_heartbeat__failed_model__is_reported_with_its_reason_and_not_moved() -> None:
    world = World(catalog("a"), expected_units=1)
    unit = world.start_unit()
    world.beat()
    report = dataclasses.replace(
        unit.report(), models=(ModelStatus(model="a", phase=ModelPhase.FAILED, error="no weights; fetch them"),)
    )

    lease = world.loop.heartbeat(report, world.now_s)

    assert [a.model for a in lease.models] == ["a"]
    state = world.loop.status(world.now_s).models[0]
    assert (state.phases, state.problem) == ((ModelPhase.FAILED,), "no weights; fetch them")


def test_status__model_that_fits_nowhere__says_why() -> None:
    world = World(catalog("a", catalog_model("b", replicas=2)), expected_units=1)
    world.start_unit()
    world.beat(3)

    states = {s.model: s for s in world.loop.status(world.now_s).models}

    assert states["a"].problem is None
    assert "1 of 2 replicas placed" in (states["b"].problem or "")
    assert states["b"].is_ready


def test_fleet_view__fresh_control_loop__is_withheld_until_units_were_heard() -> None:
    world = World(catalog("a"), expected_units=2)
    world.start_unit()
    assert world.loop.fleet_view(world.now_s) is None
    world.beat()
    assert world.loop.fleet_view(world.now_s) is None

    world.start_unit()
    world.beat()
    view = world.loop.fleet_view(world.now_s)

    assert view is not None
    assert [c.model for c in view.models] == ["a"]
    assert {u.report.unit_id for u in view.units} == {"u1", "u2"}


def test_fleet_view__warm_up_is_over__lists_models_even_without_units() -> None:
    world = World(catalog("a"), expected_units=1)

    view = world.loop.fleet_view(world.now_s + TIMING.warm_up_s + 0.1)

    assert view is not None
    assert [c.model for c in view.models] == ["a"]
    assert view.units == ()


def test_fleet_view__silent_unit__ages_then_leaves() -> None:
    world = World(catalog("a"), expected_units=1)
    world.start_unit()
    world.beat()

    aged = world.loop.fleet_view(world.now_s + 2.0)
    gone = world.loop.fleet_view(world.now_s + TIMING.expiry_s + 0.1)

    assert aged is not None
    assert gone is not None
    assert [u.age_s for u in aged.units] == [2.0]
    assert gone.units == ()


def test_heartbeat__unit_given_up_comes_back__its_model_is_ready_twice_for_its_time_at_most() -> None:
    world = World(catalog("a", "b"), expected_units=2)
    units = [world.start_unit(), world.start_unit()]
    world.beat(3)
    (model,) = units[0].ready()
    world.beat(EXPIRY_BEATS, silent=frozenset({units[0].unit_id}))
    assert model in units[1].ready()

    world.beat(3)
    twice = len(world.serving(model))
    world.beat(RESIDENCY_BEATS)

    assert twice == 2
    assert len(world.serving(model)) == 1
    assert sorted(m for u in units for m in u.ready()) == ["a", "b"]


class FleetMachine(RuleBasedStateMachine):
    """Units come, go and fall silent, the control loop restarts, the catalog changes; then it is quiet and all is well.

    `World.beat` checks with every lease that no version has two contents and that quotas fit the pool.
    """

    def __init__(self) -> None:
        super().__init__()
        self.wanted = ("a", "b")
        self.world = World(catalog(*self.wanted), expected_units=2)

    @rule()
    @precondition(lambda self: len(self.world.units) < 4)
    def start_unit(self) -> None:
        self.world.start_unit()

    @rule(index=st.integers(0, 3))
    @precondition(lambda self: self.world.units)
    def kill_unit(self, index: int) -> None:
        ids = sorted(self.world.units)
        self.world.kill_unit(ids[index % len(ids)])

    @rule(times=st.integers(1, 15))
    def beat(self, times: int) -> None:
        self.world.beat(times)

    @rule(index=st.integers(0, 3), times=st.integers(1, 12))
    @precondition(lambda self: self.world.units)
    def one_is_silent(self, index: int, times: int) -> None:
        ids = sorted(self.world.units)
        self.world.beat(times, silent=frozenset({ids[index % len(ids)]}))

    @rule(index=st.integers(0, 3))
    @precondition(lambda self: self.world.units)
    def one_leaves(self, index: int) -> None:
        ids = sorted(self.world.units)
        self.world.units[ids[index % len(ids)]].is_leaving = True

    @rule()
    def restart_control_loop(self) -> None:
        self.world.restart_control_loop()

    @rule(models=st.sets(st.sampled_from("abcd"), min_size=1), policy=st.sampled_from(["mux", "prefill_first"]))
    def change_catalog(self, models: set[str], policy: str) -> None:
        self.wanted = tuple(sorted(models))
        self.world.want(catalog(*self.wanted, policy=policy))

    @invariant()
    def views_list_the_catalog(self) -> None:
        view = self.world.loop.fleet_view(self.world.now_s)
        assert view is None or tuple(c.model for c in view.models) == self.wanted

    def teardown(self) -> None:
        self.world.beat()
        for unit_id in [i for i, u in self.world.units.items() if u.is_leaving]:
            self.world.kill_unit(unit_id)
        if not self.world.units:
            self.world.start_unit()
        # A unit that was given up and comes back has models that were loaded elsewhere meanwhile: they stay their time.
        self.world.beat(SETTLE_BEATS + EXPIRY_BEATS + RESIDENCY_BEATS)
        leases = {i: u.lease for i, u in self.world.units.items()}
        self.world.beat(5)

        ready = [m for unit in self.world.units.values() for m in unit.ready()]
        assert sorted(ready) == list(self.wanted), "each model is ready once"
        assert {i: u.lease for i, u in self.world.units.items()} == leases, "leases are stable"


FleetMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestFleetMachine = FleetMachine.TestCase
