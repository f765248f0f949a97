"""What Ray's own autoscaler asks for nodes: each is a raylet on this machine. Imported by Ray's monitor."""

import os
from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider


class RayletProvider(FakeMultiNodeProvider):  # type: ignore[misc]  # Ray's has no types
    def _create_node_with_resources_and_labels(self, *node: Any) -> None:
        """One after the other: of two that start at once one may end. HTTP proxies of one machine each need a port of
        their own.
        """
        with self.lock:
            port = self.provider_config["first_proxy_port"] + self._next_node_id
            os.environ["RAY_SERVE_WORKER_PROXY_HTTP_PORT"] = str(port)
            super()._create_node_with_resources_and_labels(*node)
