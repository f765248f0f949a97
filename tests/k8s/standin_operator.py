"""A stand-in for KubeRay, the scheduler and the kubelets, one tick after the other. No pod runs (those of tests/chaos
do).

RayServices and RayClusters are reconciled by the rules of KubeRay 1.7's rayservice_controller.go and
raycluster_controller.go: what a changed spec does under each upgrade strategy, that numbers of replicas do not reach a
running cluster, that the Service is made once and changes only with the cluster behind it, and that a pod which ends
counts until it has ended.
"""

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from server_store import ServerStore
from standin_disruption import is_ready
from standin_store import Key, ObjectStore

_GPU = "nvidia.com/gpu"
_HASH = "ray.io/hash-without-replicas-and-workers-to-delete"
_NOT_HASHED = ("replicas", "minReplicas", "maxReplicas", "scaleStrategy")
_READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
_NOT_READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}


@dataclass
class Operator:
    """`broken` images never get ready. Pods take `start_ticks` to be ready and `drain_ticks` to end."""

    store: ObjectStore | ServerStore
    nodes: Mapping[str, int]
    """By name: GPUs."""
    namespace: str = "llm"
    broken: frozenset[str] = frozenset()
    start_ticks: int = 2
    drain_ticks: int = 3
    most_gpus: int = 0
    fewest_ready: int = 10**6
    """Of the pods of the cluster that serves, once it served whole."""
    _ages: dict[str, int] = field(default_factory=dict)
    _made: int = 0
    _was_whole: bool = False

    def __post_init__(self) -> None:
        for name in self.nodes:
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}}
            self.store.create(("v1", "nodes", None, name), node, is_dry=False)

    def tick(self) -> None:
        for service in self._listed("ray.io/v1", "rayservices"):
            self._reconcile_service(service)
        for cluster in self._listed("ray.io/v1", "rayclusters"):
            self._reconcile_cluster(cluster)
        self._run_pods()
        self._measure()

    def settle(self, ticks: int = 12) -> None:
        for _ in range(ticks):
            self.tick()

    def pods(self, group: str | None = None) -> list[dict[str, Any]]:
        pods = [p for p in self._listed("v1", "pods") if "ray.io/cluster" in p["metadata"]["labels"]]
        return [p for p in pods if group in (None, p["metadata"]["labels"]["ray.io/group"])]

    def measure_anew(self) -> None:
        self.most_gpus, self.fewest_ready = 0, 10**6

    def _reconcile_service(self, service: dict[str, Any]) -> None:
        status = copy.deepcopy(service.get("status", {}))
        wanted = service["spec"]["rayClusterConfig"]
        active = status.get("activeServiceStatus", {}).get("rayClusterName")
        pending = status.get("pendingServiceStatus", {}).get("rayClusterName")
        live = self._cluster(pending or active)
        if live is None:
            pending = self._new_cluster(service)
        elif live["metadata"]["annotations"][_HASH] != _hash(wanted):
            count = len(live["spec"]["workerGroupSpecs"])
            first = {**wanted, "workerGroupSpecs": wanted["workerGroupSpecs"][:count]}
            if live["metadata"]["annotations"][_HASH] == _hash(first):
                live["spec"] = copy.deepcopy(wanted)  # groups at the end are added in place
                live["metadata"]["annotations"][_HASH] = _hash(wanted)
                self.store.replace(self._key("ray.io/v1", "rayclusters", live), live, is_dry=False)
            elif service["spec"]["upgradeStrategy"]["type"] != "None":
                pending = self._new_cluster(service)
        if pending and self._is_whole(pending):
            if active:
                self._end_cluster(active)
            active, pending = pending, None
        status["activeServiceStatus"] = {**status.get("activeServiceStatus", {}), "rayClusterName": active or ""}
        status["pendingServiceStatus"] = {"rayClusterName": pending or ""}
        self.store.set_status(self._key("ray.io/v1", "rayservices", service), status)
        if active and "serveService" in service["spec"]:
            self._reconcile_serve_service(service, active)

    def _reconcile_serve_service(self, service: dict[str, Any], cluster: str) -> None:
        name, wanted = f"{service['metadata']['name']}-serve-svc", service["spec"]["serveService"]
        key = ("v1", "services", self.namespace, name)
        selector = {"ray.io/cluster": cluster, "ray.io/serve": "true"}
        head = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"][0]
        ports = [{"name": p["name"], "port": p["containerPort"]} for p in head["ports"] if p["name"] == "serve"]
        spec = {**wanted["spec"], "selector": selector, "ports": ports}
        live = [s for s in self._listed("v1", "services") if s["metadata"]["name"] == name]
        if not live:
            metadata = {"name": name, "annotations": dict(wanted["metadata"].get("annotations", {}))}
            body = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
            self.store.create(key, body, is_dry=False)
        elif live[0]["spec"]["selector"] != selector:
            self.store.replace(key, {**live[0], "spec": spec}, is_dry=False)

    def _reconcile_cluster(self, cluster: dict[str, Any]) -> None:
        name = cluster["metadata"]["name"]
        head = {**cluster["spec"]["headGroupSpec"], "groupName": "headgroup", "replicas": 1}
        for group in (head, *cluster["spec"]["workerGroupSpecs"]):
            of = [p for p in self.pods(group["groupName"]) if p["metadata"]["labels"]["ray.io/cluster"] == name]
            missing = int(group.get("replicas") or 0) - len(of)
            for _ in range(missing):
                self._new_pod(cluster, group)
            for pod in of[: max(0, -missing)]:
                self.store.delete(self._key("v1", "pods", pod))

    def _new_cluster(self, service: dict[str, Any]) -> str:
        self._made += 1
        name = f"{service['metadata']['name']}-{self._made:05d}"
        body = {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": {"name": name, "annotations": {_HASH: _hash(service["spec"]["rayClusterConfig"])}},
            "spec": copy.deepcopy(service["spec"]["rayClusterConfig"]),
        }
        self.store.create(("ray.io/v1", "rayclusters", self.namespace, name), body, is_dry=False, is_checked=False)
        return name

    def _end_cluster(self, name: str) -> None:
        self.store.remove(("ray.io/v1", "rayclusters", self.namespace, name))
        for pod in self.pods():
            if pod["metadata"]["labels"]["ray.io/cluster"] == name:
                self.store.remove(self._key("v1", "pods", pod))

    def _new_pod(self, cluster: dict[str, Any], group: dict[str, Any]) -> None:
        self._made += 1
        kind = "head" if group["groupName"] == "headgroup" else "worker"
        name = f"{cluster['metadata']['name']}-{group['groupName']}-{self._made:05d}"
        template = copy.deepcopy(group["template"])
        labels = {
            "ray.io/cluster": cluster["metadata"]["name"],
            "ray.io/group": group["groupName"],
            "ray.io/node-type": kind,
        }
        owner = {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "name": cluster["metadata"]["name"],
            "controller": True,
        }
        metadata = {
            "name": name,
            "labels": template["metadata"]["labels"] | labels,
            "ownerReferences": [owner | {"uid": cluster["metadata"]["uid"]}],
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        self.store.create(("v1", "pods", self.namespace, name), body, is_dry=False, is_checked=False)

    def _run_pods(self) -> None:
        for pod in self.pods():
            key, name = self._key("v1", "pods", pod), pod["metadata"]["name"]
            if "deletionTimestamp" in pod["metadata"]:
                age = self._ages[f"{name} ends"] = self._ages.get(f"{name} ends", 0) + 1
                if "nodeName" not in pod["spec"] or self.has_ended(pod, age):
                    self.store.remove(key)
            elif "nodeName" in pod["spec"]:
                age = self._ages[name] = self._ages.get(name, 0) + 1
                self.store.set_status(key, self.status(is_ready=self.runs(pod, age)))
            else:
                self._schedule(key, pod)

    def runs(self, pod: Mapping[str, Any], age_ticks: int) -> bool:
        """Says whether a pod that is on a node is ready."""
        is_broken = pod["spec"]["containers"][0]["image"] in self.broken
        return age_ticks >= self.start_ticks and not is_broken

    def status(self, *, is_ready: bool) -> dict[str, Any]:
        """Returns that of a pod on a node, as its kubelet tells it."""
        return _READY if is_ready else _NOT_READY

    def has_ended(self, pod: Mapping[str, Any], age_ticks: int) -> bool:
        """Says whether a pod that was told to end so many ticks ago has ended."""
        return age_ticks >= self.drain_ticks

    def _schedule(self, key: Key, pod: dict[str, Any]) -> None:
        for node, gpus in self.nodes.items():
            is_closed = self.store.get(("v1", "nodes", None, node))["spec"].get("unschedulable")
            there = [p for p in self.pods() if p["spec"].get("nodeName") == node]
            if not is_closed and gpus_of(pod) <= gpus - sum(map(gpus_of, there)):
                self.store.bind(key, node)
                return
        self.store.set_status(key, {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]})

    def _measure(self) -> None:
        """GPUs that are asked for, also by pods that find no node."""
        pods = self.pods()
        self.most_gpus = max(self.most_gpus, sum(map(gpus_of, pods)))
        for service in self._listed("ray.io/v1", "rayservices"):
            active = service.get("status", {}).get("activeServiceStatus", {}).get("rayClusterName")
            if active and (self._was_whole or self._is_whole(active)):
                self._was_whole = True
                own = [p for p in pods if p["metadata"]["labels"]["ray.io/cluster"] == active]
                workers = [p for p in own if p["metadata"]["labels"]["ray.io/node-type"] == "worker"]
                self.fewest_ready = min(self.fewest_ready, sum(map(is_ready, workers)))

    def _is_whole(self, name: str) -> bool:
        cluster = self._cluster(name)
        assert cluster is not None
        expected = 1 + sum(int(g.get("replicas") or 0) for g in cluster["spec"]["workerGroupSpecs"])
        ready = [p for p in self.pods() if p["metadata"]["labels"]["ray.io/cluster"] == name and is_ready(p)]
        return len(ready) >= expected

    def _cluster(self, name: str | None) -> dict[str, Any] | None:
        found = [c for c in self._listed("ray.io/v1", "rayclusters") if c["metadata"]["name"] == name]
        return found[0] if found else None

    def _listed(self, api_version: str, resource: str) -> list[dict[str, Any]]:
        items, _ = self.store.listed(api_version, resource, self.namespace, lambda _: True)
        return list(items)

    def _key(self, api_version: str, resource: str, item: dict[str, Any]) -> Key:
        return (api_version, resource, self.namespace, item["metadata"]["name"])


def gpus_of(pod: Mapping[str, Any]) -> int:
    return sum(int(c.get("resources", {}).get("limits", {}).get(_GPU, 0)) for c in pod["spec"]["containers"])


def _hash(spec: Mapping[str, Any]) -> str:
    groups = [{k: v for k, v in group.items() if k not in _NOT_HASHED} for group in spec["workerGroupSpecs"]]
    text = json.dumps({**spec, "workerGroupSpecs": groups}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
