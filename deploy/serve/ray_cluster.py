"""Asks the Ray cluster for the control loop, and keeps there: nodes that go, a secret, who is the newest of them."""

import secrets
import uuid
from typing import Protocol

import ray
from ray.experimental import internal_kv
from ray.util import get_node_ip_address

_TOKEN_KEY, _LEADER_KEY = b"muxfleet/stream_token", b"muxfleet/control_loop"
_TIMEOUT_S = 5.0


def stream_token() -> str:
    """Returns the secret of frame streams: the same after a restart of the Controller, gone with the cluster."""
    fresh = secrets.token_urlsafe(32).encode()
    internal_kv._internal_kv_put(_TOKEN_KEY, fresh, overwrite=False)
    kept = internal_kv._internal_kv_get(_TOKEN_KEY)
    assert kept is not None
    return bytes(kept).decode()


def going_nodes() -> frozenset[str]:
    """Returns Ray's ids of nodes that are about to go (deleted pods, spot nodes with a notice, idle nodes). Raises what
    Ray's client raises.
    """
    client = internal_kv.internal_kv_get_gcs_client()  # type: ignore[no-untyped-call]  # Ray has no types there
    return frozenset(client.get_draining_nodes(timeout=_TIMEOUT_S))


def own_node() -> str | None:
    """Ray's id of the node that this process is on; None without Ray."""
    return ray.get_runtime_context().get_node_id() if ray.is_initialized() else None


def node_host() -> str:
    """Returns the address of the node that this process is on, at which other nodes reach it."""
    return str(get_node_ip_address())  # type: ignore[no-untyped-call]  # Ray's


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
            internal_kv._internal_kv_put(_LEADER_KEY, self._own, overwrite=True)

    def is_taken_over(self) -> bool:
        return ray.is_initialized() and internal_kv._internal_kv_get(_LEADER_KEY) not in (self._own, None)
