"""Reads what a rolling update needs to know of a RayService, its RayCluster and their pods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.kubernetes.api_server import Document, Operation

TEMPLATE = "muxfleet.io/template"
"""The label by which the chart tells pod templates apart; KubeRay copies it to the pods."""

REVISION = "muxfleet.io/revision"
"""The annotation by which the chart tells a RayService from its former self."""

HEAD_GROUP = "headgroup"
_FIXED = ("rayVersion", "enableInTreeAutoscaling", "gcsFaultToleranceOptions", "authOptions")
_HAPROXY = "RAY_SERVE_ENABLE_HA_PROXY"


@dataclass(frozen=True, slots=True, kw_only=True)
class RayPod:
    """`is_going`: it was told to end and still drains."""

    name: str
    group: str
    template: str
    is_ready: bool
    is_going: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    name: str
    template: str
    replicas: int


def pod_of(document: Document) -> RayPod:
    metadata, labels = document["metadata"], document["metadata"].get("labels", {})
    conditions = {c["type"]: c["status"] for c in document.get("status", {}).get("conditions", ())}
    return RayPod(
        name=metadata["name"],
        group=labels.get("ray.io/group", ""),
        template=labels.get(TEMPLATE, ""),
        is_ready=conditions.get("Ready") == "True",
        is_going="deletionTimestamp" in metadata,
    )


def groups_of(cluster: Document) -> tuple[PodGroup, ...]:
    """Returns the groups in the order in which they are replaced: the head last, and only if Redis keeps its state."""
    spec = cluster["spec"]
    workers = [
        PodGroup(name=group["groupName"], template=_template(group), replicas=int(group.get("replicas") or 0))
        for group in spec["workerGroupSpecs"]
    ]
    head = PodGroup(name=HEAD_GROUP, template=_template(spec["headGroupSpec"]), replicas=1)
    return (*workers, head) if outlives_head(cluster) else tuple(workers)


def outlives_head(cluster: Document) -> bool:
    """Says whether the fleet serves on when its head is replaced: its state is in Redis."""
    return bool(cluster["spec"].get("gcsFaultToleranceOptions"))


def unrollable_changes(service: Document, cluster: Document) -> tuple[str, ...]:
    """Returns the keys that only another Ray cluster can take over."""
    wanted, live = service["spec"]["rayClusterConfig"], cluster["spec"]
    changed = [key for key in _FIXED if _without_empty(wanted.get(key)) != _without_empty(live.get(key))]
    before, after = (_of_serve(spec["headGroupSpec"]) for spec in (live, wanted))
    return (*changed, *(key for key, value in after.items() if value != before[key]))


def changes_of(service: Document, cluster: Document) -> tuple[Operation, ...]:
    """Returns the JSON patch that makes of the RayCluster what the RayService says; empty where it is that. A pool that
    left stays as a group without pods: KubeRay ends a group's pods only while it knows the group.
    """
    wanted, live = service["spec"]["rayClusterConfig"], cluster["spec"]
    groups = {group["groupName"]: group for group in live["workerGroupSpecs"]}
    kept = bool(live.get("enableInTreeAutoscaling"))
    workers = [_with_replicas(group, groups.get(group["groupName"]), kept) for group in wanted["workerGroupSpecs"]]
    names = {group["groupName"] for group in workers}
    workers += [_emptied(group) for name, group in groups.items() if name not in names]
    is_same = [_essence(g) for g in workers] == [_essence(g) for g in live["workerGroupSpecs"]]
    if is_same and _template(wanted["headGroupSpec"]) == _template(live["headGroupSpec"]):
        return ()
    return (
        {"op": "test", "path": "/metadata/resourceVersion", "value": cluster["metadata"]["resourceVersion"]},
        {"op": "replace", "path": "/spec/workerGroupSpecs", "value": workers},
        {"op": "replace", "path": "/spec/headGroupSpec", "value": wanted["headGroupSpec"]},
    )


def _of_serve(head_group: Mapping[str, Any]) -> Mapping[str, object]:
    """What Serve's controller on the head takes when it starts, and workers must not differ from."""
    container = head_group["template"]["spec"]["containers"][0]
    return {
        "fleet.gateway.port": [p["containerPort"] for p in container.get("ports", ()) if p.get("name") == "serve"],
        "fleet.gateway.proxy": any(v["name"] == _HAPROXY for v in container.get("env", ())),
    }


def _template(group: Mapping[str, Any]) -> str:
    return str(group["template"].get("metadata", {}).get("labels", {}).get(TEMPLATE, ""))


def _essence(group: Mapping[str, Any]) -> Sequence[object]:
    """What a change shows in. KubeRay writes defaults into its objects, so they are not compared as a whole."""
    counts = [int(group.get(key) or 0) for key in ("replicas", "minReplicas", "maxReplicas", "idleTimeoutSeconds")]
    return [group["groupName"], _template(group), *counts]


def _with_replicas(wanted: Mapping[str, Any], live: Mapping[str, Any] | None, autoscales: bool) -> Mapping[str, Any]:
    """The autoscaler's replicas, and whom it told to go, stay its own."""
    if live is None or not autoscales:
        return wanted
    low, high = int(wanted.get("minReplicas", 0)), int(wanted.get("maxReplicas", 0))
    out = {**wanted, "replicas": max(low, min(high, int(live.get("replicas") or 0)))}
    return {**out, "scaleStrategy": live["scaleStrategy"]} if live.get("scaleStrategy") else out


def _emptied(group: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**group, "replicas": 0, "minReplicas": 0, "maxReplicas": 0}


def _without_empty(value: object) -> object:
    """Empty values are dropped by servers and clients on the way."""
    if isinstance(value, Mapping):
        return {k: out for k, v in value.items() if (out := _without_empty(v))}
    return value or None
