"""Pools whose nodes follow demand: what KubeRay's autoscaler is told of them, what pods ask of a quota, and who may add
pods.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_runner import Helm, objects_of, of_kind, ray_service

pytestmark = pytest.mark.k8s

_L40S = {"device": "cuda", "gpu_type": "L40S"}
GROWS = {"name": "grows", **_L40S, "gpus_per_node": 2, "node_labels": {"p": "grows"}, "nodes": {"min": 1, "max": 5}}
STAYS = {"name": "stays", **_L40S, "node_labels": {"p": "stays"}, "nodes": {"min": 2}}


def fleet(*pools: dict[str, Any]) -> dict[str, Any]:
    return {"models": [{"id": "a", "source": "org/a"}], "pools": list(pools)}


VALUES: dict[str, Any] = {
    "fleet": fleet(GROWS, STAYS),
    "autoscaling": {"enabled": True, "idleTimeoutSeconds": 120},
    "pools": {"grows": {"idleTimeoutSeconds": 45}},
}


def rendered(helm: Helm, chart: Path, values: dict[str, Any]) -> list[dict[str, Any]]:
    outcome = helm.template(chart, overrides=values)
    assert outcome.code == 0, outcome.errors
    return objects_of(outcome.output)


def cluster(helm: Helm, chart: Path, values: dict[str, Any] = VALUES) -> dict[str, Any]:
    return dict(ray_service(rendered(helm, chart, values))["spec"]["rayClusterConfig"])


def test_range__pool_that_grows_beside_one_that_stays__is_the_groups_own(helm: Helm, chart: Path) -> None:
    config = cluster(helm, chart)

    keys = ("groupName", "replicas", "minReplicas", "maxReplicas", "idleTimeoutSeconds")
    assert [tuple(group[key] for key in keys) for group in config["workerGroupSpecs"]] == [
        ("grows", 1, 1, 5, 45),
        ("stays", 2, 2, 2, 120),
    ]
    assert config["enableInTreeAutoscaling"] is True
    assert config["autoscalerOptions"]["version"] == "v2"
    assert config["autoscalerOptions"]["idleTimeoutSeconds"] == 120


def test_range__autoscaler_is_off__no_pool_may_have_one_and_nothing_tells_of_it(helm: Helm, chart: Path) -> None:
    off = VALUES | {"autoscaling": {"enabled": False}}
    refused = helm.template(chart, overrides=off)
    config = cluster(helm, chart, {"fleet": fleet(STAYS)})

    assert "fleet.pools[0].nodes.max = 5: above min (1), but autoscaling.enabled is false" in refused.errors
    assert "enableInTreeAutoscaling" not in config
    assert "autoscalerOptions" not in config
    assert "idleTimeoutSeconds" not in config["workerGroupSpecs"][0]


def test_serve_config__of_pools__has_a_scaler_of_ours_where_nodes_may_change(helm: Helm, chart: Path) -> None:
    service = ray_service(rendered(helm, chart, VALUES))

    applications = {a["name"]: a for a in yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]}
    assert {name: app.get("external_scaler_enabled", False) for name, app in applications.items()} == {
        "units-grows": True,
        "units-stays": False,
        "control": False,
        "gateway": False,
    }
    assert applications["units-grows"]["deployments"][0]["num_replicas"] == 2


@pytest.mark.parametrize("nodes", [{"min": 1, "max": 3}, {"min": 2}], ids=["grows", "stays"])
@pytest.mark.parametrize(
    ("device", "units"),
    [
        ({"device": "simulated", "gpu_type": "H100", "gpus_per_node": 8, "mesh_gpus": 4}, 2),
        ({"device": "cpu", "cores": 1}, 1),
        ({"device": "cuda", "gpu_type": "H100", "gpus_per_node": 8}, None),
    ],
    ids=["simulated", "cpu", "cuda"],
)
def test_units__of_a_node_without_gpus__are_no_more_than_belong_there(
    helm: Helm, chart: Path, device: dict[str, Any], units: int | None, nodes: dict[str, int]
) -> None:
    """Else the first pod, which has room for many, would take all, and the autoscaler would add none."""
    pool = {"name": "p", "nodes": nodes, "node_labels": {"p": "p"}, **device}
    service = ray_service(rendered(helm, chart, VALUES | {"fleet": fleet(pool), "pools": {}}))

    unit = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"][0]["deployments"][0]
    assert unit.get("max_replicas_per_node") == units


def test_units__of_a_node_without_gpus_and_labels__are_refused_where_pods_shall_be_added(
    helm: Helm, chart: Path
) -> None:
    pool = {"name": "p", "device": "simulated", "gpu_type": "H100", "nodes": {"min": 1, "max": 3}}
    outcome = helm.template(chart, overrides=VALUES | {"fleet": fleet(pool), "pools": {}})

    assert (
        "muxfleet: fleet.pools[0].node_labels = {}: of a pool without GPUs one pod would take all units, and none "
        "would be added; give it labels of its own, for example {muxfleet.io/pool: p}"
    ) in outcome.errors


def containers(documents: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """All that run in the fleet's pods, with the autoscaler's, which KubeRay adds."""
    config = ray_service(documents)["spec"]["rayClusterConfig"]
    yield "autoscaler", config["autoscalerOptions"]
    groups = {"head": config["headGroupSpec"]} | {g["groupName"]: g for g in config["workerGroupSpecs"]}
    for name, group in groups.items():
        pod = group["template"]["spec"]
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            yield f"{name}.{container['name']}", container


def test_quota__of_a_namespace__admits_every_container_and_knows_the_most_gpus(helm: Helm, chart: Path) -> None:
    """A ResourceQuota refuses pods that say nothing of what it counts."""
    documents = rendered(helm, chart, VALUES)

    for name, container in containers(documents):
        for side in ("requests", "limits"):
            assert {"cpu", "memory"} <= container["resources"].get(side, {}).keys(), f"{name} has no {side}"
    groups = ray_service(documents)["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    gpus = [
        group["maxReplicas"] * group["template"]["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"]
        for group in groups
    ]
    assert gpus == [10, 2]


def test_rights__of_the_autoscaler__are_those_that_kuberay_gives_the_heads_account(helm: Helm, chart: Path) -> None:
    """KubeRay makes a Role and binds it to the account that the head's pod names; the chart makes that account, mounts
    its token where the autoscaler runs and nowhere else, lets it reach the API server, and gives it no rights itself.
    """
    documents = rendered(helm, chart, VALUES | {"networkPolicy": {"enabled": True}})
    config = ray_service(documents)["spec"]["rayClusterConfig"]
    pods = [config["headGroupSpec"]["template"]["spec"], *(g["template"]["spec"] for g in config["workerGroupSpecs"])]
    (account,) = {pod["serviceAccountName"] for pod in pods}

    assert account in [d["metadata"]["name"] for d in of_kind(documents, "ServiceAccount")]
    assert [pod["automountServiceAccountToken"] for pod in pods] == [True, False, False]
    bound = [s["name"] for binding in of_kind(documents, "RoleBinding") for s in binding["subjects"]]
    assert account not in bound
    egress = [rule for policy in of_kind(documents, "NetworkPolicy") for rule in policy["spec"].get("egress", ())]
    assert {"protocol": "TCP", "port": 6443} in [port for rule in egress for port in rule.get("ports", ())]
