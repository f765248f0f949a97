"""What API server and operator refuse although the schemas let it through.

The rules on RayServices are those of ray-operator/controllers/ray/utils/validation.go of KubeRay 1.7.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from helm_runner import LOADER
from ray.serve.schema import ServeDeploySchema

from deploy.serve.app_args import (
    CONTROL_APP,
    CONTROLLER_DEPLOYMENT,
    GATEWAY_APP,
    GatewayArgs,
    UnitShape,
)
from deploy.serve.controller_config import ControllerConfig

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
MAX_RAY_SERVICE_NAME = 47
UPGRADES = {"NewCluster", "NewClusterWithIncrementalUpgrade", "None"}
REDIS_ENV = {"RAY_REDIS_ADDRESS", "REDIS_PASSWORD"}
QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|[kMGTPE]i?)?")
FACTORS = {
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
SERVICE_TYPES = {"ClusterIP", "NodePort", "LoadBalancer", "ExternalName"}


def object_problems(document: Mapping[str, Any]) -> Iterator[str]:
    """Of any object."""
    name = document["metadata"]["name"]
    if len(name) > (63 if document["kind"] == "Service" else 253):
        yield f"metadata.name: too long: {name}"
    for key, value in (document["metadata"].get("labels") or {}).items():
        if len(value) > 63 or not LABEL_VALUE.fullmatch(value):
            yield f"metadata.labels.{key}: {value!r} is no label"
    if document["kind"] == "Pod":
        yield from pod_problems(document["spec"], "spec")
    if document["kind"] == "RayService":
        yield from ray_service_problems(document)
    if document["kind"] == "PodDisruptionBudget":
        yield from budget_problems(document["spec"])


def budget_problems(spec: Mapping[str, Any]) -> Iterator[str]:
    """For maxUnavailable and for percentages the disruption controller asks the owner of the pods for its scale. Where
    that has none it allows 0 disruptions: https://kubernetes.io/docs/tasks/run-application/configure-pdb/.
    """
    if len({"minAvailable", "maxUnavailable"} & set(spec)) != 1:
        yield "spec: one of minAvailable and maxUnavailable"
        return
    labels = spec.get("selector", {}).get("matchLabels", {})
    if labels.get("app.kubernetes.io/component") in {"head", "worker"} and not isinstance(
        spec.get("minAvailable"), int
    ):
        yield "spec: a RayCluster owns these pods and has no scale: only an integer minAvailable allows evictions"


def ray_service_problems(document: Mapping[str, Any]) -> Iterator[str]:
    name, spec = document["metadata"]["name"], document["spec"]
    cluster = spec["rayClusterConfig"]
    if len(name) > MAX_RAY_SERVICE_NAME or not DNS_1035.fullmatch(name):
        yield f"metadata.name: {name!r}: at most {MAX_RAY_SERVICE_NAME} characters, a DNS label"
    if spec.get("rayClusterDeletionDelaySeconds", 0) < 0:
        yield "spec.rayClusterDeletionDelaySeconds: negative"
    if "upgradeStrategy" in cluster:
        yield "spec.rayClusterConfig.upgradeStrategy: not in a RayService"
    if "name" in cluster["headGroupSpec"].get("headService", {}).get("metadata", {}):
        yield "headGroupSpec.headService.metadata.name: must not be set"
    yield from _upgrade_problems(spec)
    yield from _service_problems(spec)
    yield from _cluster_problems(cluster)
    yield from serve_config_problems(spec["serveConfigV2"])


def _upgrade_problems(spec: Mapping[str, Any]) -> Iterator[str]:
    strategy = spec.get("upgradeStrategy", {})
    kind = strategy.get("type")
    if kind is not None and kind not in UPGRADES:
        yield f"spec.upgradeStrategy.type: {kind!r} is none of {sorted(UPGRADES)}"
    if kind != "NewClusterWithIncrementalUpgrade":
        return
    options = strategy.get("clusterUpgradeOptions")
    if not spec["rayClusterConfig"].get("enableInTreeAutoscaling"):
        yield "spec.upgradeStrategy: incremental upgrades need enableInTreeAutoscaling"
    if options is None:
        yield "spec.upgradeStrategy.clusterUpgradeOptions: required"
        return
    surge = options.get("maxSurgePercent", 100)
    if not 0 <= surge <= 100 or not 0 < options["stepSizePercent"] <= surge:
        yield "spec.upgradeStrategy.clusterUpgradeOptions: 0 < stepSizePercent <= maxSurgePercent <= 100"
    if options["intervalSeconds"] <= 0 or not options["gatewayClassName"]:
        yield "spec.upgradeStrategy.clusterUpgradeOptions: needs a gatewayClassName and an interval above 0"


def _service_problems(spec: Mapping[str, Any]) -> Iterator[str]:
    service = spec.get("serveService", {}).get("spec", {})
    if service.get("type", "ClusterIP") not in SERVICE_TYPES:
        yield f"spec.serveService.spec.type: {service['type']!r}"
    if service and "serve" not in {port.get("name") for port in service.get("ports", [{"name": "serve"}])}:
        yield "spec.serveService.spec.ports: none is named serve"


def _cluster_problems(cluster: Mapping[str, Any]) -> Iterator[str]:
    names = Counter(group["groupName"] for group in cluster["workerGroupSpecs"])
    for name, count in names.items():
        if count > 1 or not DNS_1035.fullmatch(name):
            yield f"workerGroupSpecs: group {name!r} must be a DNS label, once"
    redis = cluster.get("gcsFaultToleranceOptions")
    if redis is not None and redis.get("backend", "redis") == "redis" and not redis.get("redisAddress"):
        yield "gcsFaultToleranceOptions.redisAddress: required"
    if cluster.get("authOptions", {}).get("mode") == "token" and not cluster.get("rayVersion"):
        yield "rayVersion: required for authOptions"
    if cluster.get("enableInTreeAutoscaling") and cluster.get("autoscalerOptions", {}).get("idleTimeoutSeconds", 0) < 0:
        yield "autoscalerOptions.idleTimeoutSeconds: negative"
    groups = [("headGroupSpec", cluster["headGroupSpec"])]
    groups += [(f"workerGroupSpecs[{i}]", group) for i, group in enumerate(cluster["workerGroupSpecs"])]
    for path, group in groups:
        yield from _group_problems(
            group, path, has_redis=redis is not None, scales=cluster.get("enableInTreeAutoscaling")
        )


def _group_problems(group: Mapping[str, Any], path: str, *, has_redis: bool, scales: Any) -> Iterator[str]:
    parameters, pod = group.get("rayStartParams", {}), group["template"]["spec"]
    if "labels" in parameters or ("resources" in parameters and group.get("resources")):
        yield f"{path}.rayStartParams: labels and resources belong to the group"
    low, high = group.get("minReplicas", 0), group.get("maxReplicas", 2**31 - 1)
    if not 0 <= low <= high or not low <= group.get("replicas", low) <= high:
        yield f"{path}: minReplicas <= replicas <= maxReplicas"
    if group.get("idleTimeoutSeconds", 0) < 0:
        yield f"{path}.idleTimeoutSeconds: negative"
    if scales and pod.get("restartPolicy", "Never") != "Never":
        yield f"{path}: autoscaler v2 wants restartPolicy Never"
    container = pod["containers"][0]
    env = {variable["name"] for variable in container.get("env", [])}
    if has_redis and (env & REDIS_ENV or "redis-password" in parameters):
        yield f"{path}: Redis is told twice"
    if scales and "RAY_enable_autoscaler_v2" in env:
        yield f"{path}: the autoscaler's version is told twice"
    ports = [port.get("name", "") for port in container.get("ports", [])]
    if ports and not any(port == "serve" or port.startswith("serve-") for port in ports):
        yield f"{path}: ports are listed, none of them is named serve"
    yield from pod_problems(pod, path)


def pod_problems(pod: Mapping[str, Any], path: str) -> Iterator[str]:
    volumes = [volume["name"] for volume in pod.get("volumes", [])]
    yield from _repeated(volumes, f"{path}.volumes")
    yield from _repeated([c["name"] for c in pod["containers"]], f"{path}.containers")
    for container in pod["containers"]:
        where = f"{path}.{container['name']}"
        mounts = container.get("volumeMounts", [])
        yield from _repeated([variable["name"] for variable in container.get("env", [])], f"{where}.env")
        yield from _repeated([mount["mountPath"] for mount in mounts], f"{where}.volumeMounts")
        yield from _repeated([port["name"] for port in container.get("ports", [])], f"{where}.ports")
        yield from _repeated([port["containerPort"] for port in container.get("ports", [])], f"{where}.ports")
        for mount in mounts:
            if mount["name"] not in volumes:
                yield f"{where}.volumeMounts: no volume {mount['name']}"
        for port in container.get("ports", []):
            if len(port["name"]) > 15:
                yield f"{where}.ports: {port['name']} has more than 15 characters"
        resources = container.get("resources", {})
        for name, asked in resources.get("requests", {}).items():
            limit = resources.get("limits", {}).get(name)
            if limit is not None and quantity(asked) > quantity(limit):
                yield f"{where}.resources: request of {name} above its limit"
            if "/" in name and asked != limit:
                yield f"{where}.resources: {name}: request and limit differ"


def serve_config_problems(text: str) -> Iterator[str]:
    """Ray's schema takes unknown keys and min above max."""
    config = yaml.load(text, LOADER)
    try:
        schema = ServeDeploySchema.model_validate(config)
    except ValueError as error:
        yield f"serveConfigV2: {error}"
        return
    yield from argument_problems(config)
    for application in schema.applications:
        given = next(a for a in config["applications"] if a["name"] == application.name)
        unknown = set(given) - set(type(application).model_fields)
        for deployment, raw in zip(application.deployments, given.get("deployments", []), strict=True):
            unknown |= set(raw) - set(type(deployment).model_fields)
        if unknown:
            yield f"serveConfigV2: unknown keys {sorted(unknown)}"


def argument_problems(config: Mapping[str, Any]) -> Iterator[str]:
    """Serve hands arguments over unread: our own types judge them."""
    for application in config["applications"]:
        deployments = {d["name"]: d for d in application.get("deployments", [])}
        try:
            if application["name"] == GATEWAY_APP:
                GatewayArgs.model_validate(application.get("args", {}))
            elif application["name"] != CONTROL_APP:
                UnitShape.model_validate(application.get("args", {}))
            else:
                ControllerConfig.model_validate(deployments[CONTROLLER_DEPLOYMENT]["user_config"])
        except ValueError as error:
            yield f"serveConfigV2.{application['name']}: {error}"


def quantity(value: Any) -> float:
    found = QUANTITY.fullmatch(str(value))
    assert found is not None, value
    return float(found[1]) * FACTORS.get(found[2] or "", 1.0)


def _repeated(values: Sequence[Any], path: str) -> Iterator[str]:
    for value, count in Counter(values).items():
        if count > 1:
            yield f"{path}: {value} is there {count} times"
