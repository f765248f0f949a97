"""Chooses which node leaves a pool that shrinks: the one that is cheapest to empty."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from placement.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNode:
    """The units of one node of a pool. `open_requests` are under way on them."""

    node: str
    unit_ids: tuple[str, ...]
    open_requests: int = 0


def cheapest_to_empty(
    nodes: Sequence[PoolNode],
    count: int,
    goal: Plan,
    weight_bytes: Mapping[str, int],
    *,
    others: Collection[str] = (),
    last: str | None = None,
) -> tuple[PoolNode, ...]:
    """Returns `count` of the nodes, one after the other: each is the cheapest once those before it are gone. `others`
    are units elsewhere that stay. The machine `last` is chosen when no other is left.
    """
    staying, chosen = list(nodes), []
    for _ in range(min(count, len(staying))):
        free = [node for node in staying if node.node != last] or staying
        cheapest = min(free, key=lambda node: _cost(node, staying, others, goal, weight_bytes))
        staying.remove(cheapest)
        chosen.append(cheapest)
    return tuple(chosen)


def _cost(
    node: PoolNode,
    nodes: Sequence[PoolNode],
    others: Collection[str],
    goal: Plan,
    weight_bytes: Mapping[str, int],
) -> tuple[int, int, int, str]:
    """In the order in which costs count: bytes of models that no other unit has, which are loaded elsewhere first;
    requests that end there or move; bytes that are given up.
    """
    elsewhere = {*others, *(unit_id for other in nodes if other is not node for unit_id in other.unit_ids)}
    kept = {p.model for unit in goal.units if unit.unit_id in elsewhere for p in unit.models}
    held = {p.model for unit_id in node.unit_ids for p in goal.models_of(unit_id)}
    sole_bytes = sum(weight_bytes.get(m, 0) for m in held - kept)
    return sole_bytes, node.open_requests, sum(weight_bytes.get(m, 0) for m in held), node.node
