"""Finds the cheapest numbers of nodes for the demand of a fleet file, over its pools."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deploy.errors import OptionNotUsable
from deploy.fleet_file.settings import FleetFile, PoolSection
from deploy.planning.fleet_planning import estimator_of, placement_models, units_of_fleet
from placement.plan import UnitCapacity
from placement.pool_sizing import size_pools
from placement.scaling.elastic_pool import ElasticPool, FleetSize, SizeLimits
from placement.scaling.fleet_size import FleetSizing
from placement.solvers.entry import IsTimeUp
from placement.solvers.registry import SOLVERS


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeQuestion:
    """`prices`: of one node per hour, by pool; a pool without one costs what its
    `scaling` says, or 1 per GPU. `most_nodes`: of any pool.
    """

    limits: SizeLimits
    most_nodes: int
    prices: Mapping[str, float] = field(default_factory=dict)


def cheapest_size(fleet: FleetFile, question: SizeQuestion, *, is_time_up: IsTimeUp = lambda: False) -> FleetSize:
    """Returns the cheapest nodes of each pool; of several pools some may get none. Raises as `plan_fleet`, and
    OptionNotUsable: the budget pays for no node.
    """
    _check_budget(fleet, question)
    models, estimator = placement_models(fleet), estimator_of(fleet)
    units = size_pools(units_of_fleet(fleet), models, estimator, is_time_up)
    sizing = FleetSizing(
        pools=[
            _elastic(pool, units, question, least_nodes=int(len(fleet.pools) == 1 or pool.role is not None))
            for pool in fleet.pools
        ],
        models=models,
        limits=question.limits,
        solver=SOLVERS[fleet.placement.solver].for_units(estimator, is_time_up),
        estimator=estimator,
        is_time_up=is_time_up,
    )
    return sizing.find()


def sized_fleet(fleet: FleetFile, size: FleetSize) -> FleetFile:
    """Returns the file with so many nodes, without the pools that have none."""
    pools = tuple(
        pool.model_copy(
            update={
                "nodes": pool.nodes.model_copy(update={"min": size.nodes[pool.name], "max": None}),
                "scaling": None,
            }
        )
        for pool in fleet.pools
        if size.nodes[pool.name] > 0
    )
    return fleet.model_copy(update={"pools": pools or fleet.pools[:1]})


def prices_of(text: str, fleet: FleetFile) -> Mapping[str, float]:
    """Reads POOL=COST,... Raises OptionNotUsable."""
    known = [pool.name for pool in fleet.pools]
    prices = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        remedy = f"write POOL=COST of one node per hour, commas between; pools: {', '.join(known)}"
        try:
            price = float(value)
        except ValueError as error:
            raise OptionNotUsable(option="--price", value=part, remedy=remedy) from error
        if name not in known or not 0 < price < float("inf"):
            raise OptionNotUsable(option="--price", value=part, remedy=remedy)
        if name in prices:
            raise OptionNotUsable(option="--price", value=part, remedy=f"pool {name} has a price already; give one")
        prices[name] = price
    return prices


def _elastic(
    pool: PoolSection, units: Sequence[UnitCapacity], question: SizeQuestion, *, least_nodes: int
) -> ElasticPool:
    by_node: defaultdict[str, list[UnitCapacity]] = defaultdict(list)
    for unit in units:
        if unit.pool == pool.name:
            by_node[unit.node].append(unit)
    nodes = tuple(tuple(of_node) for of_node in by_node.values())
    return ElasticPool(
        name=pool.name,
        least_nodes=least_nodes,
        most_nodes=max(question.most_nodes, least_nodes),
        nodes=nodes,
        like=nodes[0],
        cost_per_hour=_price(pool, question),
    )


def _price(pool: PoolSection, question: SizeQuestion) -> float:
    written = None if pool.scaling is None else pool.scaling.price_per_hour
    return question.prices.get(pool.name, float(pool.devices_per_node) if written is None else written)


def _check_budget(fleet: FleetFile, question: SizeQuestion) -> None:
    cheapest, budget = min(fleet.pools, key=lambda p: _price(p, question)), question.limits.max_cost_per_hour
    if budget is not None and budget < (price := _price(cheapest, question)):
        remedy = f"pays for no node; the cheapest, of pool {cheapest.name}, is {price:g} per hour: raise it"
        raise OptionNotUsable(option="--budget", value=f"{budget:g}", remedy=remedy)
