"""Gateways on nodes of their own: the group, where Serve puts them, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_runner import Helm, merged, objects_of, of_kind, ray_service
from network_reach import End, is_open

from deploy.serve.app_args import GATEWAY_APP

pytestmark = pytest.mark.k8s

LABELS = {"muxfleet.io/gateways": "own"}
POOL = {"name": "p", "device": "cuda", "gpu_type": "H100", "gpus_per_node": 8}
OWN = {
    "fleet": {"models": [{"id": "a", "source": "org/a"}], "pools": [POOL], "gateway": {"node_labels": LABELS}},
    "gateways": {"nodes": 2},
}


def rendered(helm: Helm, chart: Path, *overrides: dict[str, Any]) -> list[dict[str, Any]]:
    values = OWN
    for override in overrides:
        values = merged(values, override)
    outcome = helm.template(chart, overrides=values)
    assert outcome.code == 0, outcome.errors
    return objects_of(outcome.output)


def test_gateway_nodes__two__are_a_group_without_gpus_where_serve_puts_the_gateways(helm: Helm, chart: Path) -> None:
    own = {
        "pools": {
            "gateways": {"resources": {"limits": {"cpu": "2", "memory": "4Gi"}}, "nodeSelector": {"cheap": "yes"}}
        }
    }
    documents = rendered(helm, chart, own, {"networkPolicy": {"enabled": True}})
    service = ray_service(documents)
    units, gateways = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    (gateway,) = [d for a in config["applications"] if a["name"] == GATEWAY_APP for d in a["deployments"]]
    budgets = {b["metadata"]["name"]: b["spec"]["minAvailable"] for b in of_kind(documents, "PodDisruptionBudget")}
    policies = [o | {"metadata": {"namespace": "llm"}} for o in of_kind(documents, "NetworkPolicy")]
    one, other = (End(namespace="llm", labels=g["template"]["metadata"]["labels"]) for g in (units, gateways))

    assert (gateways["groupName"], gateways["replicas"], gateways["labels"]) == ("gateways", 2, LABELS)
    assert gateways["template"]["spec"]["nodeSelector"] == {"cheap": "yes"}
    assert gateways["template"]["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "2", "memory": "4Gi"}
    assert gateway["ray_actor_options"]["label_selector"] == LABELS
    assert "labels" not in units
    assert budgets == {"fleet-muxfleet-gateways": 1}
    assert is_open(policies, other, one, 40001)
    assert is_open(policies, one, other, 8000)


def test_gateway_nodes__switched_on__leave_the_pods_of_pools_alone(helm: Helm, chart: Path) -> None:
    none = {"fleet": {"gateway": {"node_labels": None}}, "gateways": {"nodes": 0}}
    without, with_them = (
        ray_service(rendered(helm, chart, v))["spec"]["rayClusterConfig"] for v in (none, dict[str, Any]())
    )

    assert with_them["workerGroupSpecs"][:1] == without["workerGroupSpecs"]
    assert with_them["headGroupSpec"] == without["headGroupSpec"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"fleet": {"gateway": {"node_labels": {}}}, "gateways": {"nodes": 1}},
            "muxfleet: fleet.gateway.node_labels = {}: gateways.nodes are there for gateways: name labels of these ",
        ),
        (
            {"gateways": {"nodes": 0}},
            'muxfleet: fleet.gateway.node_labels = {"muxfleet.io/gateways":"own"}: no pool\'s nodes have these labels; '
            "set gateways.nodes, or remove them",
        ),
        (
            {"fleet": {"pools": [POOL | {"name": "gateways"}]}},
            'muxfleet: fleet.pools[0].name = "gateways": gateways.nodes has a group of this name; choose another',
        ),
        (
            {"fleet": {"pools": [{"name": "c"}]}},
            "muxfleet: fleet.pools[0].node_labels = {}: its units would also run on gateways.nodes; name labels of its "
            "own, for example {muxfleet.io/pool: c}",
        ),
        (
            {"pools": {"gateways": {"terminationGracePeriodSeconds": 5}}},
            "muxfleet: pools.gateways.terminationGracePeriodSeconds = 5: below the 130 s",
        ),
    ],
    ids=["no labels", "no nodes", "taken name", "units everywhere", "killed early"],
)
def test_gateway_nodes__that_could_not_work__are_refused(
    helm: Helm, chart: Path, overrides: dict[str, Any], message: str
) -> None:
    values = merged(OWN, overrides)
    if overrides.get("fleet", {}).get("gateway") == {"node_labels": {}}:
        values["fleet"]["gateway"] = {}

    outcome = helm.template(chart, overrides=values)

    assert outcome.code != 0
    assert message in outcome.errors, outcome.errors
