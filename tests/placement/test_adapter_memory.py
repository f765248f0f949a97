"""Adapters take memory in plans, as much as the engine gives them."""

from dataclasses import replace

import pytest
from llama_fleets import ESTIMATOR
from placement_cases import MIB, make_model, make_unit

from placement.estimation.memory import AdapterShape, adapters_bytes, bytes_for_models, resident_bytes
from placement.pool_sizing import size_pools
from placement.problem import PlacementModel, Solver
from placement.solvers.memory_greedy import MemoryGreedySolver
from placement.solvers.search import SearchSolver
from profiler.adapter_sites import projection_shapes

SOLVERS = [MemoryGreedySolver(), SearchSolver(estimator=ESTIMATOR)]


def with_adapters(model: PlacementModel, count: int) -> PlacementModel:
    one = AdapterShape(rank=16, projections=frozenset(projection_shapes(model.spec)))
    return replace(model, adapters_bytes=adapters_bytes(model.spec, [one] * count))


@pytest.mark.parametrize("solver", SOLVERS, ids=["greedy", "search"])
def test_solve__adapters_have_no_room__says_so(solver: Solver) -> None:
    alone = make_model("m")
    family = with_adapters(alone, 32)
    unit = make_unit("u")
    unit = replace(unit, memory_bytes=unit.memory_bytes - bytes_for_models(unit) + resident_bytes(alone.spec))

    assert solver.solve([unit], [alone], None).units_of("m") == ("u",)
    plan = solver.solve([unit], [family], None)
    assert plan.units_of("m") == ()
    needed_mib = -(-(resident_bytes(alone.spec) + family.adapters_bytes) // MIB)
    assert f"needs {needed_mib} MiB for weights, adapters and workspace" in plan.unplaced["m"]


@pytest.mark.parametrize("solver", SOLVERS, ids=["greedy", "search"])
def test_solve__room_for_32_adapters__takes_them(solver: Solver) -> None:
    family = with_adapters(make_model("m"), 32)
    unit = make_unit("u")
    needed = resident_bytes(family.spec) + family.adapters_bytes
    unit = replace(unit, memory_bytes=unit.memory_bytes - bytes_for_models(unit) + needed)

    assert solver.solve([unit], [family], None).units_of("m") == ("u",)


def test_size_pools__model_with_adapters__pool_is_smaller_by_them() -> None:
    unit = make_unit("u")
    unit = replace(unit, sizes_pool=True, memory_bytes=unit.memory_bytes * 4)
    unit = replace(unit, total_blocks=unit.memory_bytes // unit.block_bytes)
    alone = make_model("m")
    family = with_adapters(alone, 32)

    (without,), (beside,) = (size_pools([unit], [m], ESTIMATOR) for m in (alone, family))

    missing_bytes = (without.total_blocks - beside.total_blocks) * unit.block_bytes
    assert abs(missing_bytes - family.adapters_bytes) <= unit.block_bytes
