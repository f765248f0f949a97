"""Compares two packings."""

from placement.packing.packing import Packing

Pairs = frozenset[tuple[int, int]]
"""Units and models."""
Key = tuple[int, float, float, int, int]
"""Less is better: replicas that are missing, the share of requests that is not served, the same for the model that has
it worst, GPUs in use, replicas that have to be loaded."""


def key_of(packing: Packing, running: Pairs | None = None) -> Key:
    """`running`: what is on the units now. Where units run already, using fewer of them is no gain."""
    models = packing.instance.models
    missing = sum(max(0, m.min_replicas - len(h)) for m, h in zip(models, packing.homes, strict=True))
    rates = packing.instance.rates_per_s
    asked = rates > 0
    if not asked.any():
        return missing, 0.0, 0.0, *_cost(packing, running)
    unserved = 1.0 - float(packing.served_of.sum() / rates.sum())
    worst = 1.0 - float((packing.served_of[asked] / rates[asked]).min())
    return missing, round(unserved, 4), round(worst, 3), *_cost(packing, running)


def pairs_of(packing: Packing) -> Pairs:
    return frozenset((unit, model) for model, homes in enumerate(packing.homes) for unit in homes)


def _cost(packing: Packing, running: Pairs | None) -> tuple[int, int]:
    return (packing.gpus_used, 0) if running is None else (0, len(pairs_of(packing) - running))


def serves_all(key: Key) -> bool:
    return key[:3] == (0, 0.0, 0.0)
