"""Asks Ray which nodes are about to go (deleted pods, spot nodes with a notice, idle nodes), and which is ours."""

import ray
from ray.experimental import internal_kv
from ray.util import get_node_ip_address

_TIMEOUT_S = 5.0


def going_nodes() -> frozenset[str]:
    """Ray's ids. Raises what Ray's client raises."""
    client = internal_kv.internal_kv_get_gcs_client()  # type: ignore[no-untyped-call]  # Ray has no types there
    return frozenset(client.get_draining_nodes(timeout=_TIMEOUT_S))


def own_node() -> str | None:
    """Ray's id of the node that this process is on; None without Ray."""
    return ray.get_runtime_context().get_node_id() if ray.is_initialized() else None


def node_host() -> str:
    """Returns the address of the node that this process is on, at which other nodes reach it."""
    return str(get_node_ip_address())  # type: ignore[no-untyped-call]  # Ray's
