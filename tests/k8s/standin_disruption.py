"""Evictions as the API server and the disruption controller decide on them.

The rules are those of eviction.go and disruption.go of Kubernetes: a pod that is not ready goes only while the budget
of its neighbours is whole (IfHealthyBudget), or always (AlwaysAllow); a budget in percent or by maxUnavailable needs
the scale of the pods' controller, and RayClusters have none.
"""

from typing import Any

from standin_store import ObjectStore, Refused


def evict(store: ObjectStore, namespace: str, name: str) -> None:
    """Raises Refused: 429 as long as a budget forbids it, 404 for a pod that is gone, 500 for two budgets."""
    key = ("v1", "pods", namespace, name)
    pod = store.get(key)
    budgets = [b for b in _listed(store, "policy/v1", "poddisruptionbudgets", namespace) if selects(b, pod)]
    if len(budgets) > 1:
        raise Refused(500, "InternalError", "This pod has more than one PodDisruptionBudget, which is not supported.")
    if budgets and "deletionTimestamp" not in pod["metadata"]:
        (budget,) = budgets
        pods = [p for p in _listed(store, "v1", "pods", namespace) if selects(budget, p)]
        healthy = sum(is_ready(p) for p in pods)
        allowed, desired = disruptions_allowed(budget["spec"], pods)
        is_always = budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow"
        if not (allowed > 0 or (not is_ready(pod) and (is_always or healthy >= desired))):
            name = budget["metadata"]["name"]
            told = f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
            raise Refused(
                429, "TooManyRequests", f"Cannot evict pod as it would violate the pod's disruption budget. {told}"
            )
    store.delete(key)


def disruptions_allowed(spec: dict[str, Any], pods: list[dict[str, Any]]) -> tuple[int, int]:
    """With the number of healthy pods that the budget wants."""
    healthy = sum(is_ready(p) for p in pods)
    wanted = spec.get("minAvailable")
    owners = {o["kind"] for p in pods for o in p["metadata"].get("ownerReferences", ()) if o.get("controller")}
    if isinstance(wanted, int):
        return max(0, healthy - wanted), wanted
    if owners - {"ReplicaSet", "StatefulSet", "ReplicationController", "Deployment"}:
        return 0, len(pods)  # "does not implement the scale subresource": the controller fails safe
    raise NotImplementedError("budgets of controllers with a scale")


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = {c["type"]: c["status"] for c in pod.get("status", {}).get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def selects(budget: dict[str, Any], pod: dict[str, Any]) -> bool:
    labels = pod["metadata"].get("labels", {})
    return all(labels.get(k) == v for k, v in budget["spec"]["selector"]["matchLabels"].items())


def _listed(store: ObjectStore, api_version: str, resource: str, namespace: str) -> list[dict[str, Any]]:
    items, _ = store.listed(api_version, resource, namespace, lambda _: True)
    return list(items)
