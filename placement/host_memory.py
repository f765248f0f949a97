"""A unit's share of its node's memory, for the weights of models that sleep."""

from profiler.specs import DeviceSpec

_SHARE = 0.25  # the rest is for checkpoints that are read, Ray's object store, and models that serve from a CPU
_NODE_MEMORY_PER_DEVICE = 2  # bytes of a node's memory for each byte of its GPUs': a DGX has 1.8 to 3.2


def host_share_bytes(node_bytes: int, units_per_node: int) -> int:
    """Returns a unit's share of a node of so many bytes.

    >>> host_share_bytes(64 << 30, 2) >> 30
    8
    """
    return int(_SHARE * node_bytes) // max(1, units_per_node)


def host_share_of_gpus(device: DeviceSpec, num_gpus: int) -> int:
    """Returns the share where only the GPUs of a unit are known."""
    return host_share_bytes(_NODE_MEMORY_PER_DEVICE * device.memory_bytes * num_gpus, 1)
