"""The real `kubectl drain` against the stand-ins: evictions by the disruption controller's rule. No pod runs."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helm_runner import TOOLS, Helm, merged, objects_of, of_kind
from kubernetes_schemas import CustomSchemas
from standin_disruption import is_ready
from standin_operator import Operator
from standin_server import api_standin, kubeconfig
from standin_store import ObjectStore

pytestmark = pytest.mark.k8s

FLEET = {
    "fleet": {
        "models": [{"id": "a", "source": "org/a"}],
        "pools": [{"name": "p", "device": "cuda", "gpu_type": "H100", "nodes": {"min": 2}}],
    }
}


class Cluster:
    def __init__(
        self, helm: Helm, chart: Path, schemas: CustomSchemas, folder: Path, overrides: dict[str, Any]
    ) -> None:
        self.store = ObjectStore(schemas)
        self.operator = Operator(self.store, {"cpu": 0, "gpu-0": 1, "gpu-1": 1, "gpu-2": 1})
        self.config = folder / "kubeconfig"
        outcome = helm.template(chart, overrides=merged(FLEET, overrides))
        assert outcome.code == 0, outcome.errors
        objects = objects_of(outcome.output)
        (service,) = of_kind(objects, "RayService")
        self.put("ray.io/v1", "rayservices", service)
        for budget in of_kind(objects, "PodDisruptionBudget"):
            self.put("policy/v1", "poddisruptionbudgets", budget)
        self.operator.settle()
        self.operator.measure_anew()

    def put(self, api_version: str, resource: str, body: dict[str, Any]) -> None:
        key = (api_version, resource, "llm", body["metadata"]["name"])
        self.store.apply(key, body, "helm", is_dry=False)

    def node_of(self, group: str) -> str:
        return str(self.operator.pods(group)[0]["spec"]["nodeName"])

    def drain(self, node: str, timeout_s: int) -> subprocess.CompletedProcess[str]:
        with api_standin(self.store) as address, ticking(self.operator):
            self.config.write_text(kubeconfig(address))
            return subprocess.run(
                [
                    TOOLS / "helm4" / "kubectl" / "kubectl", "--kubeconfig", self.config, "drain", node,
                    "--delete-emptydir-data", f"--timeout={timeout_s}s",
                ],
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )  # fmt: skip


@contextmanager
def ticking(operator: Operator) -> Iterator[None]:
    ends = threading.Event()

    def run() -> None:
        while not ends.wait(0.05):
            operator.tick()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def test_drain__node_of_a_worker__its_pod_goes_and_comes_back_elsewhere(
    helm4: Helm, chart: Path, custom_schemas: CustomSchemas, tmp_path: Path
) -> None:
    cluster = Cluster(helm4, chart, custom_schemas, tmp_path, {})
    node = cluster.node_of("p")

    done = cluster.drain(node, 60)
    cluster.operator.settle()

    assert done.returncode == 0, done.stderr
    assert f"node/{node} drained" in done.stdout
    pods = cluster.operator.pods("p")
    assert len(pods) == sum(map(is_ready, pods)) == 2
    assert node not in {p["spec"]["nodeName"] for p in pods}
    assert cluster.operator.fewest_ready == 1


def test_drain__second_node_while_the_first_ones_pod_is_not_back__waits(
    helm4: Helm, chart: Path, custom_schemas: CustomSchemas, tmp_path: Path
) -> None:
    cluster = Cluster(helm4, chart, custom_schemas, tmp_path, {})
    cluster.operator.nodes = {"cpu": 0, "gpu-0": 1, "gpu-1": 1}  # no third node: what goes has no other place
    first = cluster.node_of("p")
    assert cluster.drain(first, 60).returncode == 0

    (left,) = [p for p in cluster.operator.pods("p") if is_ready(p)]
    done = cluster.drain(left["spec"]["nodeName"], 2)

    assert done.returncode != 0
    assert "violate the pod's disruption budget" in done.stderr
    assert [p["metadata"]["uid"] for p in cluster.operator.pods("p") if is_ready(p)] == [left["metadata"]["uid"]]


def test_drain__node_of_a_broken_pod_while_another_is_broken_too__goes_on(
    helm4: Helm, chart: Path, custom_schemas: CustomSchemas, tmp_path: Path
) -> None:
    """Pods that serve nothing: by Kubernetes' default they would keep their nodes until somebody mends them."""
    cluster = Cluster(helm4, chart, custom_schemas, tmp_path, {})
    node, spared = (pod["spec"]["nodeName"] for pod in cluster.operator.pods("p"))
    (image,) = {pod["spec"]["containers"][0]["image"] for pod in cluster.operator.pods("p")}
    cluster.operator.broken = frozenset({image})
    cluster.operator.tick()
    assert not any(map(is_ready, cluster.operator.pods("p")))

    done = cluster.drain(node, 10)

    assert done.returncode == 0, done.stderr
    assert spared in {pod["spec"].get("nodeName") for pod in cluster.operator.pods("p")}


@pytest.mark.parametrize("form", [{"maxUnavailable": 1}, {"minAvailable": "50%"}], ids=str)
def test_drain__budget_that_needs_a_scale__hangs(
    helm4: Helm, chart: Path, custom_schemas: CustomSchemas, tmp_path: Path, form: dict[str, Any]
) -> None:
    """The stand-in itself: why the chart writes a number that must stay."""
    cluster = Cluster(helm4, chart, custom_schemas, tmp_path, {"podDisruptionBudget": {"enabled": False}})
    body = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "old"},
        "spec": {**form, "selector": {"matchLabels": {"muxfleet.io/pool": "p"}}},
    }
    cluster.put("policy/v1", "poddisruptionbudgets", body)

    done = cluster.drain(cluster.node_of("p"), 2)

    assert done.returncode != 0
    assert "violate the pod's disruption budget" in done.stderr
    assert cluster.operator.fewest_ready == 2


@pytest.mark.parametrize("protects", [True, False])
def test_drain__node_of_the_head__only_where_it_is_not_protected(
    helm4: Helm, chart: Path, custom_schemas: CustomSchemas, tmp_path: Path, protects: bool
) -> None:
    cluster = Cluster(helm4, chart, custom_schemas, tmp_path, {"podDisruptionBudget": {"protectHead": protects}})

    done = cluster.drain(cluster.node_of("headgroup"), 2 if protects else 60)

    assert (done.returncode == 0) is not protects, done.stderr
