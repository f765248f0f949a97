from dataclasses import replace

from hypothesis import given, settings
from llama_fleets import BLOCK_BYTES, ESTIMATOR, GIB, LLAMA_7B, LLAMA_13B, LLAMA_30B, LLAMA_65B, llm, nodes
from placement_cases import model_lists, unit_lists

from placement.estimation.memory import bytes_for_models, fillable_bytes, kept_prefill_bytes, resident_bytes
from placement.estimation.plan_estimate import estimate
from placement.nodes import NodePool
from placement.plan import Plan, UnitCapacity
from placement.pool_sizing import size_pools
from placement.problem import PlacementModel
from placement.solvers.search import SearchSolver
from profiler.gpus.h100 import DEVICE as H100

SEARCH = SearchSolver(estimator=ESTIMATOR, rounds=30)


def h100_nodes(gpus_per_node: int) -> NodePool:
    """Without a size of the pool."""
    memory_bytes = fillable_bytes(H100.memory_bytes)
    fixed = nodes(1, gpus_per_node, device=H100)
    return replace(fixed, memory_bytes=memory_bytes, total_blocks=memory_bytes // BLOCK_BYTES, sizes_pool=True)


def units(count: int, num_gpus: int = 1) -> list[UnitCapacity]:
    return [h100_nodes(8).unit(i, 0, num_gpus) for i in range(count)]


def solved(sized: tuple[UnitCapacity, ...], models: list[PlacementModel]) -> Plan:
    return SEARCH.solve(sized, models, None)


def test_lay_out__large_model_on_few_gpus__shrinks_the_pool_instead_of_refusing() -> None:
    models = [llm("large", LLAMA_65B, rate_per_s=0.5)]

    fixed = SEARCH.lay_out([nodes(1, 2, device=H100, pool_gib=30)], models)
    layout = SEARCH.lay_out([h100_nodes(2)], models)

    assert "large" in fixed.plan.unplaced
    assert not layout.plan.unplaced
    (unit,) = layout.units
    (held,) = layout.plan.models_of(unit.unit_id)
    left_bytes = unit.memory_bytes - resident_bytes(LLAMA_65B, 2)
    assert left_bytes - BLOCK_BYTES < held.quota_blocks * BLOCK_BYTES <= left_bytes


def test_estimate__neighbour_on_a_unit__takes_its_weights_from_the_pool() -> None:
    (unit,) = units(1)
    pair = [llm("hot", rate_per_s=4), llm("cold", LLAMA_13B, rate_per_s=1e-6)]

    alone, together = (estimate([unit], m, SEARCH.solve([unit], m, None), ESTIMATOR).units[0] for m in (pair[:1], pair))

    assert 1.5 * alone.kv_share < together.kv_share < 1


def test_size_pools__one_model__gets_all_that_its_weights_leave() -> None:
    sized = size_pools(units(2), [llm("only")], ESTIMATOR)

    beside_bytes = resident_bytes(LLAMA_7B) + kept_prefill_bytes([llm("only")])
    assert all(0 <= bytes_for_models(u) - beside_bytes < 2 * BLOCK_BYTES for u in sized)


def test_size_pools__cold_models_beside_a_full_one__keep_room_for_one_more() -> None:
    models = [llm("a", rate_per_s=2, max_replicas=1), llm("b", LLAMA_13B, rate_per_s=1, max_replicas=1)]

    sized = size_pools(units(2), models, ESTIMATOR)

    assert len({u.total_blocks for u in sized}) == 1
    assert all(bytes_for_models(u) >= resident_bytes(LLAMA_7B) + resident_bytes(LLAMA_13B) for u in sized)


def test_size_pools__unit_that_joins__gets_the_size_of_its_like() -> None:
    first, second = units(2)
    (sized,) = size_pools([first], [llm("a")], ESTIMATOR)

    again = size_pools([sized, second], [llm("a", rate_per_s=2)], ESTIMATOR)

    assert [u.total_blocks for u in again] == [sized.total_blocks] * 2


def test_size_pools__unit_that_joins_when_a_model_fits_nowhere__gets_room_for_it() -> None:
    first, second = units(2)
    (sized,) = size_pools([first], [llm("a")], ESTIMATOR)
    models = [llm("a"), llm("large", LLAMA_30B)]

    again = size_pools([sized, second], models, ESTIMATOR)

    assert bytes_for_models(again[1]) >= resident_bytes(LLAMA_30B)
    assert not solved(again, models).unplaced


@settings(max_examples=25)
@given(unit_lists(), model_lists())
def test_size_pools__any_fleet__sizes_are_fixed_and_within_memory(
    given_units: list[UnitCapacity], models: list[PlacementModel]
) -> None:
    sized = size_pools(given_units, models, ESTIMATOR)

    for before, after in zip(given_units, sized, strict=True):
        assert not after.sizes_pool
        assert after == replace(before, total_blocks=after.total_blocks, sizes_pool=False)
        assert before.sizes_pool or after == before
        assert not before.sizes_pool or after.total_blocks * after.block_bytes <= after.memory_bytes


def test_fillable_bytes__of_a_gpu__leaves_room_for_graphs_and_libraries() -> None:
    assert 72 * GIB < fillable_bytes(80 * GIB) < 75 * GIB
    assert fillable_bytes(GIB) == 0
