"""What the pods of a pool ask for where the values name no or not all resources."""

from pathlib import Path
from typing import Any

import pytest
from helm_runner import Helm, objects_of, ray_service

pytestmark = pytest.mark.k8s

EIGHT = {"name": "p", "device": "cuda", "gpu_type": "H100", "gpus_per_node": 8}


def resources(helm: Helm, chart: Path, pool: dict[str, Any], **values: Any) -> dict[str, Any]:
    fleet = {"models": [{"id": "a", "source": "org/a"}], "pools": [pool]}
    outcome = helm.template(chart, overrides={"fleet": fleet, **values})
    assert outcome.code == 0, outcome.errors
    (group,) = ray_service(objects_of(outcome.output))["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    return dict(group["template"]["spec"]["containers"][0]["resources"])


@pytest.mark.parametrize(
    ("pool", "asked"),
    [
        ({"name": "p"}, {"cpu": "4", "memory": "16Gi"}),
        ({"name": "p", "device": "simulated", "gpu_type": "H100", "gpus_per_node": 8}, {"cpu": "4", "memory": "16Gi"}),
        ({"name": "p", "device": "cuda", "gpu_type": "L40S"}, {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": 1}),
        (EIGHT, {"cpu": "32", "memory": "128Gi", "nvidia.com/gpu": 8}),
    ],
    ids=["cpu", "simulated", "one", "eight"],
)
def test_resources__none_named__grow_with_the_gpus_of_a_node(
    helm: Helm, chart: Path, pool: dict[str, Any], asked: dict[str, Any]
) -> None:
    assert resources(helm, chart, pool) == {"requests": asked, "limits": asked}


def test_resources__named_in_part__are_kept_and_the_rest_is_filled_in(helm: Helm, chart: Path) -> None:
    own = {"p": {"resources": {"limits": {"memory": "900Gi"}}}}

    assert resources(helm, chart, EIGHT, pools=own) == {
        "requests": {"cpu": "32", "nvidia.com/gpu": 8},
        "limits": {"cpu": "32", "memory": "900Gi", "nvidia.com/gpu": 8},
    }


def test_resources__of_all_workers__hold_for_a_pool_of_its_own_gpus(helm: Helm, chart: Path) -> None:
    everybody = {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "3", "memory": "9Gi"}}}

    assert resources(helm, chart, EIGHT, workers=everybody) == {
        "requests": {"cpu": "2", "nvidia.com/gpu": 8},
        "limits": {"cpu": "3", "memory": "9Gi", "nvidia.com/gpu": 8},
    }


def test_gpus__of_a_resource_that_ray_does_not_know__are_told_to_ray(helm: Helm, chart: Path) -> None:
    """KubeRay counts names that end with gpu and MIG's, Ray's autoscaler the former alone."""
    fleet = {"models": [{"id": "a", "source": "org/a"}], "pools": [EIGHT, {"name": "c", "node_labels": {"p": "c"}}]}
    fleet["pools"][0] = EIGHT | {"node_labels": {"p": "p"}}
    outcome = helm.template(chart, overrides={"fleet": fleet, "workers": {"gpuResource": "nvidia.com/gpu.shared"}})
    assert outcome.code == 0, outcome.errors

    gpu, cpu = ray_service(objects_of(outcome.output))["spec"]["rayClusterConfig"]["workerGroupSpecs"]

    assert gpu["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu.shared"] == 8
    assert gpu["rayStartParams"] == {"num-gpus": "8"}
    assert cpu["rayStartParams"] == {}
