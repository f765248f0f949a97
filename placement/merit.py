"""Which of two packings is better."""

from placement.packing import Packing

Key = tuple[int, float, float, int]
"""Less is better: replicas that are missing, the share of requests that is not served, the same for the model that has
it worst, GPUs in use."""


def key_of(packing: Packing) -> Key:
    models = packing.instance.models
    missing = sum(max(0, m.min_replicas - len(h)) for m, h in zip(models, packing.homes, strict=True))
    rates = packing.instance.rates_per_s
    asked = rates > 0
    if not asked.any():
        return missing, 0.0, 0.0, packing.gpus_used
    unserved = 1.0 - float(packing.served_of.sum() / rates.sum())
    worst = 1.0 - float((packing.served_of[asked] / rates[asked]).min())
    return missing, round(unserved, 4), round(worst, 3), packing.gpus_used


def serves_all(key: Key) -> bool:
    return key[:3] == (0, 0.0, 0.0)
