"""Finds what is wrong with the name of a device."""

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
