"""Says which control loop of a cluster is the newest: Serve may start one before it has ended the one before."""

import uuid
from typing import Protocol

import ray
from ray.experimental import internal_kv

_KEY = b"muxfleet/control_loop"


class Leadership(Protocol):
    """Both raise what Ray's client raises."""

    def take(self) -> None: ...

    def is_taken_over(self) -> bool:
        """Another one has taken it since."""
        ...


class ClusterLeadership:
    """Implements Leadership by the cluster's key-value store. Without Ray nobody takes over."""

    def __init__(self) -> None:
        self._own = uuid.uuid4().hex.encode()

    def take(self) -> None:
        if ray.is_initialized():
            internal_kv._internal_kv_put(_KEY, self._own, overwrite=True)

    def is_taken_over(self) -> bool:
        return ray.is_initialized() and internal_kv._internal_kv_get(_KEY) not in (self._own, None)
