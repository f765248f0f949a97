"""Finds what is wrong with the name of a device, and what a known one has."""

from profiler.devices import device_named
from profiler.errors import UnknownDevice


def unknown_device(gpu_type: str) -> str | None:
    """The remedy; None for a device that the profiler knows."""
    try:
        device_named(gpu_type)
    except UnknownDevice as error:
        near = f"did you mean {error.nearest}? " if error.nearest else ""
        return f"unknown device; {near}known: {', '.join(error.known)}"
    return None


def without_weights(kv_bytes: int, device_bytes: int | None, gpu_type: str | None, mesh_gpus: int) -> str | None:
    """The remedy where KV takes all that a unit has, by its `device_bytes` or its GPUs; None where it has more, or
    nobody knows.
    """
    if device_bytes is not None:
        return "leaves no device_memory for weights; lower it" if kv_bytes >= device_bytes else None
    if gpu_type is None or unknown_device(gpu_type):
        return None
    unit_bytes = device_named(gpu_type).memory_bytes * mesh_gpus
    if kv_bytes < unit_bytes:
        return None
    return f"leaves nothing of the unit's memory for weights ({gpu_type}: {unit_bytes} bytes); lower it"
