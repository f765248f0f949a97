"""Compares two packings."""

from placement.estimation.model_floors import starved
from placement.packing.packing import Packing

Key = tuple[int, float, float, int, int]
"""Less is better: replicas that are missing, the share of requests that is not served and what models that starve count
beside it, the share that is not served of the model that has it worst, GPUs in use, replicas that have to be loaded.
Models that no unit can hold count nowhere.
"""


def key_of(packing: Packing) -> Key:
    """Returns the key of a packing. Where units run already, using fewer of them is no gain."""
    rates = packing.instance.rates_per_s
    asked = packing.instance.placeable & (rates > 0)
    cost = (packing.gpus_used, 0) if packing.running is None else (0, packing.loaded)
    if not asked.any():
        return packing.missing, 0.0, 0.0, *cost
    served, demand = packing.served_of[asked], rates[asked]
    unserved, shares = 1.0 - float(served.sum() / demand.sum()), served / demand
    return packing.missing, round(unserved + starved(shares), 4), round(1.0 - float(shares.min()), 3), *cost


def serves_all(key: Key) -> bool:
    return key[:3] == (0, 0.0, 0.0)
