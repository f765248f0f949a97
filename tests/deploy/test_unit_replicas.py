"""How many units Serve is asked for, and which are told to go, against a Serve that says what a test lets it say."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.control.pool_scaling import PoolState
from deploy.serve.unit_replicas import PoolDeployment, UnitReplicas, number_asked

POOL = PoolState(pool="p", least=1, most=5, wanted=1, present=1, units_per_node=1)
RUNS = PoolDeployment(target=1, alive=1, is_updating=False)


@dataclass(slots=True)
class FakeServe:
    deployment: PoolDeployment | None
    asked: list[int] = field(default_factory=list)
    retired: list[str] = field(default_factory=list)

    def deployments(self) -> dict[str, PoolDeployment]:
        return {} if self.deployment is None else {"p": self.deployment}

    def ask(self, pool: str, number: int) -> None:
        assert pool == "p"
        assert self.deployment is not None
        self.asked.append(number)
        self.deployment = replace(self.deployment, target=number)

    def retire(self, pool: str, unit_ids: Sequence[str]) -> None:
        self.retired += unit_ids


def followed(deployment: PoolDeployment | None, *pools: PoolState) -> FakeServe:
    units = FakeServe(deployment)
    UnitReplicas(units).follow(pools)
    return units


@given(wanted=st.integers(0, 9), running=st.integers(0, 9), target=st.integers(0, 9))
def test_number_asked__any_state__ends_no_unit_that_runs_and_is_what_is_wanted_once_they_ended(
    wanted: int, running: int, target: int
) -> None:
    asked = number_asked(wanted=wanted, running=running, target=target)

    assert asked >= min(running, target)
    assert asked >= wanted
    assert number_asked(wanted=wanted, running=min(running, wanted), target=asked) == wanted


def test_follow__more_are_wanted__they_are_asked_for_once() -> None:
    units = FakeServe(RUNS)
    replicas = UnitReplicas(units)
    for _ in range(3):
        replicas.follow([replace(POOL, wanted=3)])

    assert units.asked == [3]


@pytest.mark.parametrize("pool", [replace(POOL, most=1), replace(POOL, wanted=3, shadow=True)], ids=["fixed", "shadow"])
def test_follow__pool_that_is_not_to_change__is_left_alone(pool: PoolState) -> None:
    assert followed(RUNS, replace(pool, wanted=3)).asked == []


def test_follow__pool_is_not_deployed_yet__nothing_is_asked() -> None:
    assert followed(None, replace(POOL, wanted=3)).asked == []


def test_follow__fleet_starts__its_first_units_are_waited_for() -> None:
    units = FakeServe(PoolDeployment(target=2, alive=1, is_updating=True))
    replicas, pool = UnitReplicas(units), replace(POOL, least=2, wanted=3)
    replicas.follow([pool])
    assert units.asked == []

    units.deployment = PoolDeployment(target=2, alive=2, is_updating=True)
    replicas.follow([pool])
    assert units.asked == [3]


def test_follow__units_are_replaced_one_by_one__demand_does_not_wait_for_the_last() -> None:
    """Serve calls a deployment UPDATING until the last unit of a rollout is there: hours, or for ever where a node is
    missing.
    """
    units = FakeServe(RUNS)
    replicas = UnitReplicas(units)
    replicas.follow([POOL])

    units.deployment = PoolDeployment(target=1, alive=0, is_updating=True)
    replicas.follow([replace(POOL, wanted=4)])
    assert units.asked == [4]

    units.deployment = PoolDeployment(target=4, alive=1, is_updating=True)  # the others' nodes do not come
    replicas.follow([replace(POOL, wanted=1)])
    assert units.asked == [4, 1]


def test_follow__units_are_emptied__as_many_go_as_are_too_many_and_the_number_falls_after_them() -> None:
    units = FakeServe(PoolDeployment(target=3, alive=3, is_updating=False))
    pool = replace(POOL, wanted=1, present=3, leaving=("b", "c"), emptied=("b",))
    replicas = UnitReplicas(units)
    replicas.follow([pool])
    assert (units.retired, units.asked) == (["b"], [])

    units.deployment = PoolDeployment(target=3, alive=2, is_updating=False)
    replicas.follow([replace(pool, present=2, leaving=("c",), emptied=())])
    assert (units.retired, units.asked) == (["b"], [2])


@pytest.mark.parametrize(("alive", "present"), [(2, 3), (3, 2)], ids=["Serve knows first", "the control loop does"])
def test_follow__unit_that_stays_dies_while_two_are_emptied__one_of_these_is_left(alive: int, present: int) -> None:
    pool = replace(POOL, wanted=1, present=present, leaving=("b", "c"), emptied=("b", "c"))

    units = followed(PoolDeployment(target=3, alive=alive, is_updating=False), pool)

    assert units.retired == ["b"]


def test_follow__replacement_of_a_unit_that_went_is_heard__the_number_falls_all_the_same() -> None:
    """Serve starts one at once, on the same node; it is there before Serve calls it running."""
    pool = replace(POOL, wanted=1, present=3, leaving=("b2", "c2"), emptied=("b2", "c2"))
    units = followed(PoolDeployment(target=3, alive=1, is_updating=False), pool)

    assert (units.retired, units.asked) == ([], [1])


def test_follow__serve_does_not_call_a_unit_running_yet_that_another_one_leaves_for__number_waits() -> None:
    """Of two that are more than wanted Serve ends first what it calls starting: c, which may serve already."""
    units = FakeServe(PoolDeployment(target=3, alive=2, is_updating=False, ended_first=frozenset({"c"})))
    pool = replace(POOL, wanted=2, present=3, units=("a", "b", "c"), leaving=("b",), emptied=("b",))
    replicas = UnitReplicas(units)
    replicas.follow([pool])
    assert (units.retired, units.asked) == ([], [])

    units.deployment = PoolDeployment(target=3, alive=3, is_updating=False)
    replicas.follow([pool])
    assert (units.retired, units.asked) == (["b"], [])

    units.deployment = PoolDeployment(target=3, alive=2, is_updating=False, ended_first=frozenset({"b2"}))
    replicas.follow([replace(pool, present=2, units=("a", "c"), leaving=(), emptied=())])
    assert (units.retired, units.asked) == (["b"], [2])


def test_follow__unit_that_leaves_before_serve_calls_it_running__ends_when_it_is_empty() -> None:
    units = FakeServe(PoolDeployment(target=3, alive=2, is_updating=False, ended_first=frozenset({"c"})))
    pool = replace(POOL, wanted=2, present=3, units=("a", "b", "c"), leaving=("c",))
    replicas = UnitReplicas(units)
    replicas.follow([pool])
    assert units.asked == []

    replicas.follow([replace(pool, emptied=("c",))])
    assert (units.retired, units.asked) == ([], [2])


def test_follow__serve_does_not_call_a_unit_running_yet__more_are_asked_for_all_the_same() -> None:
    starting = PoolDeployment(target=2, alive=1, is_updating=False, ended_first=frozenset({"b"}))

    assert followed(starting, replace(POOL, wanted=4, present=2, units=("a", "b"))).asked == [4]
