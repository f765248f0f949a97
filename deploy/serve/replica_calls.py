"""Says where a Serve replica listens for calls from other replicas."""

import ipaddress
from typing import Any

from ray.serve._private import replica
from ray.util import get_node_ip_address


def keep_calls_on_loopback() -> None:
    """Serve binds that port on every interface. Where the node itself is on loopback (`muxfleet up`), so shall this be:
    what comes in is unpickled. Serve has no setting for it. `tests/e2e` looks at the sockets of a fleet.
    """
    vars(replica)["add_port_to_grpc_server"] = _local_port(vars(replica)["add_port_to_grpc_server"])


def _local_port(add_port: Any) -> Any:  # noqa: ANN401 - Ray's function, which has no types
    def add(server: Any, address: str) -> Any:  # noqa: ANN401 - as above
        node = ipaddress.ip_address(str(get_node_ip_address()))  # type: ignore[no-untyped-call]  # Ray's
        return add_port(server, address.replace("[::]", str(node)) if node.is_loopback else address)

    return add
