"""Nodes that end in virtual time, and come again."""

from dataclasses import dataclass
from typing import Any, cast

from deploy.control.pool_scaling import PoolState
from deploy.simulation.node_supply import NodeSupply, NodeTerms
from deploy.simulation.units import UnitIdentity


@dataclass
class Unit:
    identity: UnitIdentity
    deaths: int = 0

    def die(self) -> int:
        self.deaths += 1
        return 0


def state(wanted: int, **changes: Any) -> PoolState:
    return PoolState(pool="p", least=1, most=2, wanted=wanted, present=2, units_per_node=1, **changes)


def test_supply__node_was_emptied_and_is_asked_for_again__is_another_that_holds_nothing() -> None:
    """Weights that slept in the host memory of the one before are not there."""
    units = {i: Unit(UnitIdentity(unit_id=i, pool="p", num_gpus=1, memory_bytes=1, node=f"n-{i}")) for i in ("a", "b")}
    terms = {"p": NodeTerms(provision_s=20.0, cost_per_hour=3.0)}
    supply = NodeSupply(cast(Any, units), first={"p": 2}, terms=terms)

    supply.follow([state(1, leaving=("b",), emptied=("b",))], 10.0)
    assert units["b"].deaths == 0
    supply.follow([state(1)], 15.0)
    assert (units["a"].deaths, units["b"].deaths) == (0, 1)
    supply.follow([state(2)], 20.0)

    assert [u.identity.unit_id for u in supply.present(30.0)] == ["a"]
    assert [u.identity.unit_id for u in supply.present(40.0)] == ["a", "b"]
    assert supply.use(40.0).cost == 3.0 * (40.0 + 15.0 + 20.0) / 3600
    assert (supply.use(40.0).lost, supply.use(40.0).changes) == (0, 2)
