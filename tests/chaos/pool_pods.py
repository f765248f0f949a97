"""Pods of one pool for Ray's own autoscaler, at a real API server; KubeRay's part is its stand-in's. Each pod of a
worker is a Ray node of this machine, which knows its pod's name as KubeRay tells it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ray_nodes import RayNode, RayNodes
from standin_operator import Operator

_HEAD = "headgroup"
_CONTAINER = {"name": "ray", "image": "muxfleet", "imageID": "muxfleet", "ready": True, "restartCount": 0}


def ray_variables(pod: str, group: str) -> Mapping[str, str]:
    """By which Ray's autoscaler knows that a node is a pod."""
    return {"RAY_CLOUD_INSTANCE_ID": pod, "RAY_NODE_TYPE_NAME": group}


@dataclass
class PoolPods(Operator):
    """`ray` is given when the pod of its head has a name. A node ends at most `grace_ticks` after it was told to."""

    ray: RayNodes | None = None
    grace_ticks: int = 60
    _running: dict[str, RayNode] = field(default_factory=dict, init=False)
    _numbers: int = field(default=0, init=False)

    def head_name(self) -> str:
        (head,) = self.pods(_HEAD)
        return str(head["metadata"]["name"])

    def runs(self, pod: Mapping[str, Any], age_ticks: int) -> bool:
        name, group = pod["metadata"]["name"], pod["metadata"]["labels"]["ray.io/group"]
        if group == _HEAD:
            return True
        if self.ray is None:
            return False
        if name not in self._running:
            self._running[name] = self.ray.add(number=self._numbers, variables=ray_variables(name, group))
            self._numbers += 1
        return self._running[name].has_started

    def has_ended(self, pod: Mapping[str, Any], age_ticks: int) -> bool:
        node = self._running.get(pod["metadata"]["name"])
        if node is None:
            return True
        if age_ticks == 1:
            node.terminate()
        if node.is_there() and age_ticks < self.grace_ticks:
            return False
        node.kill()
        return True

    def status(self, *, is_ready: bool) -> dict[str, Any]:
        state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}} if is_ready else {"waiting": {}}
        return super().status(is_ready=is_ready) | {"containerStatuses": [_CONTAINER | {"state": state}]}

    def _reconcile_cluster(self, cluster: dict[str, Any]) -> None:
        """Who is to be deleted goes; nobody else, as where Ray's autoscaler decides."""
        pods = self.pods()
        head = {**cluster["spec"]["headGroupSpec"], "groupName": _HEAD, "replicas": 1}
        for group in (head, *cluster["spec"]["workerGroupSpecs"]):
            goes = (group.get("scaleStrategy") or {}).get("workersToDelete") or ()
            there = [p["metadata"] for p in pods if p["metadata"]["labels"]["ray.io/group"] == group["groupName"]]
            for metadata in there:
                if metadata["name"] in goes and "deletionTimestamp" not in metadata:
                    self.store.delete(("v1", "pods", self.namespace, metadata["name"]))
            for _ in range(int(group["replicas"]) - len(there)):
                self._new_pod(cluster, group)
