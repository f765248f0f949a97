"""Asks Ray which nodes are about to go: pods that are deleted, spot nodes with a notice, idle nodes."""

from ray.experimental import internal_kv

_TIMEOUT_S = 5.0


def going_nodes() -> frozenset[str]:
    """Ray's ids. Raises what Ray's client raises."""
    client = internal_kv.internal_kv_get_gcs_client()  # type: ignore[no-untyped-call]  # Ray has no types there
    return frozenset(client.get_draining_nodes(timeout=_TIMEOUT_S))
