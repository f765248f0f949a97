"""Keeps the secret of a cluster's frame streams."""

import secrets

from ray.experimental import internal_kv

_KEY = b"muxfleet/stream_token"


def stream_token() -> str:
    """The same after a restart of the Controller, gone with the cluster."""
    fresh = secrets.token_urlsafe(32).encode()
    internal_kv._internal_kv_put(_KEY, fresh, overwrite=False)
    kept = internal_kv._internal_kv_get(_KEY)
    assert kept is not None
    return bytes(kept).decode()
