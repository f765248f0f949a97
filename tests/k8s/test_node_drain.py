"""The real `kubectl drain` against the stand-ins: evictions by the disruption controller's rule. No pod runs.

Or against a real API server and the real disruption controller (control_plane.py).
"""

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from control_plane import FOLDER, ControlPlane
from helm_runner import TOOLS, Helm, merged, objects_of
from kubernetes_schemas import CustomSchemas
from server_store import ALWAYS_ALLOW, ServerStore, put_release
from standin_disruption import is_ready
from standin_operator import Operator
from standin_server import api_standin, kubeconfig
from standin_store import ObjectStore

pytestmark = pytest.mark.k8s

KUBECTL = TOOLS / "helm4" / "kubectl" / "kubectl" if FOLDER is None else Path(FOLDER) / "kubectl"
FLEET = {
    "fleet": {
        "models": [{"id": "a", "source": "org/a"}],
        "pools": [{"name": "p", "device": "cuda", "gpu_type": "H100", "nodes": {"min": 2}}],
    }
}


@dataclass
class Cluster:
    """`kubeconfig` is that of a real API server; None: `store` is put behind a stand-in for one."""

    store: ObjectStore | ServerStore
    folder: Path
    kubeconfig: str | None
    operator: Operator = field(init=False)

    def __post_init__(self) -> None:
        self.operator = Operator(self.store, {"cpu": 0, "gpu-0": 1, "gpu-1": 1, "gpu-2": 1})

    def install(self, helm: Helm, chart: Path, overrides: dict[str, Any]) -> None:
        outcome = helm.template(chart, overrides=merged(FLEET, overrides))
        assert outcome.code == 0, outcome.errors
        put_release(self.store, objects_of(outcome.output))
        self.operator.settle()
        self.operator.measure_anew()

    def node_of(self, group: str) -> str:
        return str(self.operator.pods(group)[0]["spec"]["nodeName"])

    def drain(self, node: str, timeout_s: int) -> subprocess.CompletedProcess[str]:
        with ticking(self.operator):
            if isinstance(self.store, ServerStore):
                return self._drain(str(self.kubeconfig), node, timeout_s)
            with api_standin(self.store) as address:
                return self._drain(kubeconfig(address), node, timeout_s)

    def _drain(self, config: str, node: str, timeout_s: int) -> subprocess.CompletedProcess[str]:
        file = self.folder / "kubeconfig"
        file.write_text(config)
        command = ["--kubeconfig", file, "drain", node, "--delete-emptydir-data", f"--timeout={timeout_s}s"]
        return subprocess.run([KUBECTL, *command], capture_output=True, text=True, timeout=100, check=False)


Clusters = Callable[[dict[str, Any]], Cluster]


@pytest.fixture
def clusters(
    helm4: Helm,
    chart: Path,
    custom_schemas: CustomSchemas,
    tmp_path: Path,
    control_plane: ControlPlane | None,
    server_store: ServerStore | None,
) -> Clusters:
    def installed(overrides: dict[str, Any]) -> Cluster:
        store = ObjectStore(custom_schemas) if server_store is None else server_store
        cluster = Cluster(store, tmp_path, None if control_plane is None else control_plane.kubeconfig())
        cluster.install(helm4, chart, overrides)
        return cluster

    return installed


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


def test_drain__node_of_a_worker__its_pod_goes_and_comes_back_elsewhere(clusters: Clusters) -> None:
    cluster = clusters({})
    node = cluster.node_of("p")

    done = cluster.drain(node, 60)
    cluster.operator.settle()

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] in (f"node/{node} drained", f"node/{node} evicted")  # as kubectl 1.20 says
    pods = cluster.operator.pods("p")
    assert len(pods) == sum(map(is_ready, pods)) == 2
    assert node not in {p["spec"]["nodeName"] for p in pods}
    assert cluster.operator.fewest_ready == 1


def test_drain__second_node_while_the_first_ones_pod_is_not_back__waits(clusters: Clusters) -> None:
    cluster = clusters({})
    cluster.operator.nodes = {"cpu": 0, "gpu-0": 1, "gpu-1": 1}  # no third node: what goes has no other place
    first = cluster.node_of("p")
    assert cluster.drain(first, 60).returncode == 0

    (left,) = [p for p in cluster.operator.pods("p") if is_ready(p)]
    done = cluster.drain(left["spec"]["nodeName"], 2)

    assert done.returncode != 0
    assert "violate the pod's disruption budget" in done.stderr
    assert [p["metadata"]["uid"] for p in cluster.operator.pods("p") if is_ready(p)] == [left["metadata"]["uid"]]


def test_drain__node_of_a_broken_pod_while_another_is_broken_too__goes_on(clusters: Clusters) -> None:
    """Pods that serve nothing: by Kubernetes' default they would keep their nodes until somebody mends them."""
    cluster = clusters({})
    if isinstance(cluster.store, ServerStore) and cluster.store.minor < ALWAYS_ALLOW:
        pytest.skip("unhealthyPodEvictionPolicy came with Kubernetes 1.26")
    node, spared = (pod["spec"]["nodeName"] for pod in cluster.operator.pods("p"))
    (image,) = {pod["spec"]["containers"][0]["image"] for pod in cluster.operator.pods("p")}
    cluster.operator.broken = frozenset({image})
    cluster.operator.tick()
    assert not any(map(is_ready, cluster.operator.pods("p")))

    done = cluster.drain(node, 10)

    assert done.returncode == 0, done.stderr
    assert spared in {pod["spec"].get("nodeName") for pod in cluster.operator.pods("p")}


@pytest.mark.parametrize("form", [{"maxUnavailable": 1}, {"minAvailable": "50%"}], ids=str)
def test_drain__budget_that_needs_a_scale__hangs(clusters: Clusters, form: dict[str, Any]) -> None:
    """The stand-in itself: why the chart writes a number that must stay."""
    cluster = clusters({"podDisruptionBudget": {"enabled": False}})
    body = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "old"},
        "spec": {**form, "selector": {"matchLabels": {"muxfleet.io/pool": "p"}}},
    }
    key = ("policy/v1", "poddisruptionbudgets", "llm", "old")
    cluster.store.apply(key, body, "kubectl", is_dry=False)

    done = cluster.drain(cluster.node_of("p"), 2)

    assert done.returncode != 0
    assert "violate the pod's disruption budget" in done.stderr
    assert cluster.operator.fewest_ready == 2


@pytest.mark.parametrize("protects", [True, False])
def test_drain__node_of_the_head__only_where_it_is_not_protected(clusters: Clusters, protects: bool) -> None:
    cluster = clusters({"podDisruptionBudget": {"protectHead": protects}})

    done = cluster.drain(cluster.node_of("headgroup"), 2 if protects else 60)

    assert (done.returncode == 0) is not protects, done.stderr
