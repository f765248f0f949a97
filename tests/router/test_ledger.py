"""How many blocks a gateway may promise to a model."""

import pytest
from fleet_values import fleet, model_load, unit

from pdmux_actor.kv.block_pool import BlockPool
from pdmux_actor.kv.geometry import KvGeometry
from router.admission.block_ledger import LENDABLE_SHARE, block_budgets

TOTAL = 1000


def budget(quota: int, used: int, *neighbours: tuple[int, int]) -> int:
    """Blocks of model m beside neighbours of (quota, used)."""
    loads = (
        model_load("m", quota_blocks=quota, used_blocks=used, running=1),
        *(model_load(f"n{i}", quota_blocks=q, used_blocks=u, running=1) for i, (q, u) in enumerate(neighbours)),
    )
    return block_budgets(fleet(unit("u", *loads, total_blocks=TOTAL), models=tuple(m.model for m in loads)))["m"].blocks


def test_block_budgets__neighbour_uses_its_quota__no_more_than_the_own_quota() -> None:
    assert budget(400, 100, (600, 600)) == 400


def test_block_budgets__neighbour_works_and_uses_little_of_its_quota__half_of_what_is_idle_is_lent() -> None:
    """A hot model must not wait at the gateway while blocks that its unit would lend it lie idle."""
    assert budget(200, 200, (800, 100)) == 200 + (1000 - 200 - 100) // 2


def test_block_budgets__neighbour_has_borrowed__what_it_uses_is_not_lent() -> None:
    assert budget(500, 100, (500, 700)) == 500


@pytest.mark.parametrize(
    ("quota", "used", "neighbour"), [(200, 200, 100), (200, 50, 300), (500, 600, 100), (300, 0, 0)]
)
def test_block_budgets__one_neighbour__is_what_the_unit_would_allocate(quota: int, used: int, neighbour: int) -> None:
    pool = BlockPool(TOTAL, lendable_share=LENDABLE_SHARE)
    geometry = KvGeometry(blocks_per_row=1, tokens_per_row=16)
    pool.add_model("m", geometry, TOTAL)
    pool.add_model("n", geometry, TOTAL)
    assert pool.allocate_rows("m", used) is not None
    assert pool.allocate_rows("n", neighbour) is not None
    pool.set_quotas({"m": quota, "n": TOTAL - quota})

    assert budget(quota, used, (TOTAL - quota, neighbour)) == used + pool.allocatable_rows("m")
