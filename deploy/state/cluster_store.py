"""Keeps documents in the key-value store of the Ray cluster: in Redis where the head has one."""

from ray.exceptions import RayError
from ray.experimental import internal_kv

from deploy.state.state_store import StateNotKept

_NAMESPACE = b"muxfleet"


class ClusterStore:
    """Implements StateStore. `prefix` tells the fleets of one cluster apart. All ends with the cluster's head, unless
    that keeps its state in Redis.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    @property
    def begun(self) -> int:
        """Ray's head does not come back empty: its fleet starts anew with it."""
        return 0

    def read(self, name: str) -> bytes | None:
        try:
            found = internal_kv._internal_kv_get(self._key(name), namespace=_NAMESPACE)
        except (RayError, RuntimeError, OSError) as error:
            raise StateNotKept(f"the Ray cluster's head does not answer: {error!r}") from error
        return None if found is None else bytes(found)

    def write(self, name: str, document: bytes) -> None:
        try:
            internal_kv._internal_kv_put(self._key(name), document, overwrite=True, namespace=_NAMESPACE)
        except (RayError, RuntimeError, OSError) as error:
            raise StateNotKept(f"the Ray cluster's head does not answer: {error!r}") from error

    def close(self) -> None:
        """Nothing is open: the connection is Ray's."""

    def _key(self, name: str) -> bytes:
        return f"{self._prefix}/{name}".encode()
