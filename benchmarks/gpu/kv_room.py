"""How large the KV pool of a benchmark with an 8B model is on this GPU."""

import torch

_MOST_GIB = 80.0
_FOR_MODELS_GIB = 32.0  # weights of 8B and 1B, what their launches compute in, graphs, libraries
_GIB = 1 << 30


def kv_pool_bytes(asked_gib: float | None) -> int:
    """`asked_gib` None: as much as fits, the same on all GPUs that are large enough."""
    if asked_gib is not None:
        return int(_GIB * asked_gib)
    if not torch.cuda.is_available():
        return 0  # the executor says what is missing
    return int(_GIB * fitting_gib(torch.cuda.get_device_properties(0).total_memory))


def fitting_gib(memory_bytes: int) -> float:
    """
    >>> [round(fitting_gib(gib << 30)) for gib in (139, 79)]
    [80, 47]
    """
    return min(_MOST_GIB, memory_bytes / _GIB - _FOR_MODELS_GIB)
