"""A running fleet is planned by the same figures as its file: profiles, tables, and what units measured."""

from dataclasses import replace

import pytest
from fleet_model import FakeUnit, World, catalog, catalog_model

from deploy.control.fleet_costs import FleetCosts
from placement.estimation.problem_arrays import Estimator
from placement.solvers.search import SearchSolver
from profiler.gpus.h100 import DEVICE as H100
from profiler.specs import DeviceSpec

STRANGE = replace(H100, name="NVIDIA RTX PRO 6000", peak_flops_per_s=2.0e14, memory_bandwidth_bytes_per_s=1.5e12)


def device_of(unit: FakeUnit, costs: FleetCosts) -> DeviceSpec | None:
    return costs.device_of(unit.report())


def test_device__pool_with_a_profile__is_the_profiles_whatever_the_unit_says() -> None:
    profiled = replace(H100, name="profiled")
    costs = FleetCosts(profiled={"p": profiled})

    assert device_of(FakeUnit(unit_id="u", device="A40"), costs) == profiled
    assert device_of(FakeUnit(unit_id="u", device="A40", pool="other"), costs) != profiled


@pytest.mark.parametrize(
    ("device", "known"), [("H100", "H100"), ("cpu-4", "cpu-4"), ("cpu", None), ("Strange 1", None)]
)
def test_device__nothing_was_measured__is_what_a_table_says(device: str, known: str | None) -> None:
    found = device_of(FakeUnit(unit_id="u", device=device), FleetCosts())

    assert (None if found is None else found.name) == known


def test_device__gpu_of_no_table__has_the_rates_that_were_measured_and_two_alike_are_alike() -> None:
    units = [
        FakeUnit(unit_id="u", device=STRANGE.name, measured_device=replace(STRANGE, peak_flops_per_s=rate))
        for rate in (1.9e14, 1.92e14, 3.8e14)
    ]

    one, like_it, faster = (device_of(unit, FleetCosts()) for unit in units)

    assert one is not None
    assert faster is not None
    assert one == like_it
    assert one.peak_flops_per_s == pytest.approx(1.9e14, rel=0.05)
    assert faster.peak_flops_per_s / one.peak_flops_per_s == pytest.approx(2.0, rel=0.1)


def test_explain__gpu_that_was_measured__has_a_headroom_by_its_speed() -> None:
    headrooms = []
    for rate in (1.0e13, 1.0e14):
        made = World(catalog(catalog_model("a", replicas=1)), expected_units=1, solver=SearchSolver())
        unit = made.start_unit()
        unit.device, unit.measured_device = STRANGE.name, replace(STRANGE, peak_flops_per_s=rate)
        made.beat(4, asks={"a": 1})
        headrooms.append(made.loop.explain("a", made.now_s).homes[0].unit.headroom)

    assert headrooms[0] < headrooms[1] < 1e6


def test_explain__estimator_of_the_fleet__is_the_one_that_is_asked() -> None:
    headrooms = []
    for host_s in (0.5e-3, 50e-3):
        costs = FleetCosts(estimator=Estimator(host_s=host_s))
        made = World(catalog(catalog_model("a", replicas=1)), expected_units=1, solver=SearchSolver(), costs=costs)
        made.start_unit().device = "A40"
        made.beat(4, asks={"a": 1})
        headrooms.append(made.loop.explain("a", made.now_s).homes[0].unit.headroom)

    assert headrooms[1] < 0.5 * headrooms[0]
