"""Ray's own autoscaler (v2) on what the chart renders, without KubeRay: what it reads of the RayCluster, and which pods
it would add for units that wait.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_runner import Helm, objects_of, ray_service
from ray._raylet import IMPLICIT_RESOURCE_PREFIX
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.autoscaler_pb2 import ResourceRequest, ResourceRequestByCount
from ray.core.generated.common_pb2 import LabelSelectorOperator

pytestmark = pytest.mark.k8s

_H100 = {"gpu_type": "H100", "gpus_per_node": 8, "mesh_gpus": 4}


def autoscaling_config(config: dict[str, Any]) -> AutoscalingConfig:
    cluster = {"metadata": {"name": "fleet", "namespace": "llm"}, "spec": config}
    return AutoscalingConfig(_derive_autoscaling_config_from_ray_cr(cluster), skip_content_hash=True)


def request_of(deployment: dict[str, Any]) -> ResourceRequest:
    """What Serve asks Ray for, for one replica that waits."""
    actor = deployment["ray_actor_options"]
    resources = {"CPU": actor["num_cpus"], "GPU": actor.get("num_gpus", 0)}
    if "max_replicas_per_node" in deployment:
        resources[f"{IMPLICIT_RESOURCE_PREFIX}Unit"] = 1.0 / deployment["max_replicas_per_node"]
    selector = [(key, LabelSelectorOperator.LABEL_OPERATOR_IN, [v]) for key, v in actor["label_selector"].items()]
    return ResourceRequestUtil.make({k: v for k, v in resources.items() if v}, label_selectors=[selector])


@pytest.mark.parametrize(
    ("device", "gpu_resource"),
    [
        ({"device": "simulated", **_H100}, "nvidia.com/gpu"),
        ({"device": "cuda", **_H100}, "nvidia.com/gpu"),
        ({"device": "cuda", **_H100}, "nvidia.com/mig-3g.40gb"),
        ({"device": "cpu", "cores": 2}, "nvidia.com/gpu"),
    ],
    ids=["simulated", "cuda", "slices", "cpu"],
)
def test_units_that_wait__of_one_pool_of_two__nodes_of_that_pool_are_added_and_no_more_than_it_may_have(
    helm: Helm, chart: Path, device: dict[str, Any], gpu_resource: str
) -> None:
    pools = [
        {"name": name, **device, "nodes": {"min": 1, "max": most}, "node_labels": {"p": name}}
        for name, most in (("first", 3), ("second", 5))
    ]
    values = {"fleet": {"models": [{"id": "a", "source": "org/a"}], "pools": pools}, "autoscaling": {"enabled": True}}
    values["workers"] = {"gpuResource": gpu_resource}
    outcome = helm.template(chart, overrides=values)
    assert outcome.code == 0, outcome.errors
    service = ray_service(objects_of(outcome.output))
    config = autoscaling_config(service["spec"]["rayClusterConfig"])
    applications = {a["name"]: a for a in yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]}
    (deployment,) = applications["units-second"]["deployments"]
    units_per_node = 2 if "mesh_gpus" in device else 1

    def added(units: int) -> dict[str, int]:
        asked = ResourceRequestByCount(request=request_of(deployment), count=units)
        reply = ResourceDemandScheduler(event_logger=None).schedule(
            SchedulingRequest(
                disable_launch_config_check=True,
                node_type_configs=config.get_node_type_configs(),
                max_num_nodes=config.get_max_num_nodes(),
                resource_requests=[asked] if units else [],
            )
        )
        return {launch.instance_type: launch.count for launch in reply.to_launch}

    assert added(0) == {"first": 1, "second": 1}
    assert added(3 * units_per_node) == {"first": 1, "second": 3}
    assert added(9 * units_per_node) == {"first": 1, "second": 5}
