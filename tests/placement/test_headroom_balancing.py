"""The step that raises the least headroom of a plan."""

import random
from collections.abc import Mapping, Sequence

import pytest
from llama_fleets import ESTIMATOR, LLAMA_7B, LLAMA_13B, llm, nodes

from placement.estimation.problem_arrays import make_instance
from placement.packing.headroom_balancing import balance_headroom
from placement.packing.packing import Packing
from placement.problem import PlacementModel

HOT, WARM = 5.5, 1.0


def packed(models: Sequence[PlacementModel], placed: Sequence[Mapping[str, float]]) -> Packing:
    """On one A100 each, which holds three 7B or a 13B and a 7B."""
    units = [nodes(pool_gib=36).unit(0, gpu, 1) for gpu in range(len(placed))]
    instance = make_instance(units, models, ESTIMATOR)
    packing = Packing.of_units(instance, units)
    for unit, parts in enumerate(placed):
        for model, rate in parts.items():
            packing.put(unit, instance.index[model], rate)
    return packing


def rates(packing: Packing) -> dict[int, float]:
    return {m: sum(packing.parts[u][m] for u in homes) for m, homes in enumerate(packing.homes)}


def test_level__one_unit_full_and_one_idle__they_share() -> None:
    packing = packed([llm("hot", rate_per_s=2 * HOT, max_replicas=2)], [{"hot": 2 * HOT}, {}])
    before = packing.factor[0]

    balance_headroom(packing)

    assert packing.homes[0] == {0, 1}
    assert packing.factor[:2].min() > 1.8 * before


def test_level__no_further_replica_may_be__models_change_places() -> None:
    """Two hot models on one unit, two cold ones on the other."""
    models = [
        *(llm(f"hot{i}", rate_per_s=HOT, max_replicas=1) for i in range(2)),
        *(llm(f"cold{i}", rate_per_s=0.1, max_replicas=1) for i in range(2)),
    ]
    packing = packed(models, [{"hot0": HOT, "hot1": HOT}, {"cold0": 0.1, "cold1": 0.1}])
    before = packing.factor[0]

    balance_headroom(packing)

    assert all(len(homes) == 1 for homes in packing.homes)
    assert packing.homes[packing.instance.index["hot0"]] != packing.homes[packing.instance.index["hot1"]]
    assert packing.factor[:2].min() > 1.5 * before


def test_level__no_unit_has_memory_for_the_hot_model__another_one_makes_room() -> None:
    models = [
        llm("hot", LLAMA_13B, rate_per_s=HOT, max_replicas=2),
        *(llm(f"a{i}", LLAMA_7B, rate_per_s=WARM, max_replicas=1) for i in range(4)),
    ]
    placed = [{"hot": HOT}, {"a0": WARM, "a1": WARM}, {"a2": WARM, "a3": WARM}]
    packing = packed(models, placed)
    before = packing.factor[0]
    assert not any(
        bool(packing.costs_of(u).holds(packing.sums[u] + packing.costs_of(u).sums(packing.instance.index["hot"], 1.0)))
        for u in (1, 2)
    )

    balance_headroom(packing)

    assert len(packing.homes[packing.instance.index["hot"]]) == 2
    assert packing.factor[:3].min() > 1.3 * before


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("moves", [True, False])
def test_level__any_packing__least_headroom_does_not_fall_and_no_load_is_lost(seed: int, moves: bool) -> None:
    draw = random.Random(seed)
    models = [
        llm(f"m{i}", draw.choice([LLAMA_7B, LLAMA_13B]), rate_per_s=draw.choice([0.2, 1, 4, 9]), max_replicas=3)
        for i in range(6)
    ]
    packing = packed(models, [{} for _ in range(6)])
    for number, model in enumerate(packing.instance.models):
        for unit in draw.sample(range(6), 2):
            rate = model.demand.rate_per_s / 2
            if packing.factor_of(unit, {**packing.parts[unit], number: rate}) >= 0:
                packing.put(unit, number, rate)
    before, least, served = rates(packing), packing.factor[:6].min(), packing.served_of.sum()
    homes = [set(h) for h in packing.homes]

    balance_headroom(packing, moves=moves)

    assert rates(packing) == pytest.approx(before)
    assert packing.factor[:6].min() >= least
    assert packing.served_of.sum() >= served - 1e-9
    for model, now in enumerate(packing.homes):
        assert len(now) <= 3
        assert moves or homes[model] <= now
    for unit in range(6):
        assert bool(packing.costs_of(unit).holds(packing.sums[unit]))
