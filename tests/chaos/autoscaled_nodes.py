"""Nodes that Ray's own autoscaler (v2) adds for what waits for resources, and removes when nothing runs on them."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID, FAKE_HEAD_NODE_TYPE
from ray_nodes import RayNodes

_IDLE_MINUTES = 0.1
# Ray asks for these keys, and needs none of them: nothing is installed on a node.
_EMPTY = (
    "cluster_synced_files",
    "initialization_commands",
    "setup_commands",
    *(f"{node}_{what}_commands" for node in ("head", "worker") for what in ("setup", "start_ray")),
)

# As Ray's own tests of its autoscaler set them.
AUTOSCALER_ENVIRONMENT = {
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "1",
    "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
}


def autoscaling_config(*, ports: int, most_nodes: int) -> Mapping[str, Any]:
    """For `RayNodes(ports=ports)`; nodes are as `RayNodes.add` makes them, of the label place=goes."""
    return {
        "cluster_name": "breathing",
        "max_workers": most_nodes,
        "idle_timeout_minutes": _IDLE_MINUTES,
        "provider": {
            "type": "external",
            "module": "raylet_provider.RayletProvider",
            "gcs_address": f"127.0.0.1:{ports}",
            "head_node_id": FAKE_HEAD_NODE_ID,
            "launch_multiple": True,
            "disable_node_updaters": True,
            "first_proxy_port": ports + 5,
        },
        **{key: [] for key in _EMPTY},
        "head_node_type": FAKE_HEAD_NODE_TYPE,
        "available_node_types": {
            FAKE_HEAD_NODE_TYPE: {
                "resources": {"CPU": 16},
                "labels": {"place": "stays"},
                "node_config": {},
                "max_workers": 0,
            },
            "goes": {
                "resources": {"CPU": 1, "object_store_memory": 100_000_000},
                "labels": {"place": "goes"},
                "node_config": {},
                "min_workers": 1,
                "max_workers": most_nodes,
            },
        },
    }


class AutoscaledNodes:
    """Nobody but Ray adds or removes one."""

    def __init__(self, cluster: RayNodes) -> None:
        self._cluster = cluster

    @property
    def count(self) -> int:
        """Of raylets beside the head's."""
        names = []
        for process in self._cluster.processes():
            with suppress(psutil.NoSuchProcess):
                names.append(process.name())
        return names.count("raylet") - 1

    async def follow(self, pool: Any, units: list[Any]) -> None: ...
