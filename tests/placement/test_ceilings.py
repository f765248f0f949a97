"""What all pools together may have."""

from placement.scaling.elastic_pool import Ceilings, HeldNodes

DEAR = HeldNodes(nodes=2, gpus=8, cost_per_hour=30.0)
CHEAP = HeldNodes(nodes=3, gpus=1, cost_per_hour=2.0)


def test_ceilings__cost_or_gpus__leave_a_pool_what_the_others_do_not_hold() -> None:
    assert Ceilings(max_cost_per_hour=100.0).most_beside(CHEAP, [DEAR]) == 20
    assert Ceilings(max_gpus=18).most_beside(CHEAP, [DEAR]) == 2
    assert Ceilings(max_cost_per_hour=100.0, max_gpus=18).most_beside(CHEAP, [DEAR]) == 2
    assert Ceilings(max_gpus=3).most_beside(CHEAP, [DEAR]) == 0


def test_ceilings__what_is_held__is_admitted_up_to_them() -> None:
    assert Ceilings().admit([DEAR, CHEAP])
    assert Ceilings(max_cost_per_hour=66.0, max_gpus=19).admit([DEAR, CHEAP])
    assert not Ceilings(max_cost_per_hour=65.9).admit([DEAR, CHEAP])
    assert not Ceilings(max_gpus=18).admit([DEAR, CHEAP])
