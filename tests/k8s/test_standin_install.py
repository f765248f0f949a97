"""The real helm against a loopback stand-in for the Kubernetes API. It validates; nothing reconciles, no pod runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_runner import CI_VALUES, LOADER, Helm, merged
from kubernetes_schemas import CustomSchemas
from standin_server import api_standin, kubeconfig
from standin_store import ObjectStore, Refused

from deploy.serve.app_args import CONTROL_APP

pytestmark = pytest.mark.k8s

BASE: dict[str, Any] = {"fleet": {"models": [{"id": "a", "source": "org/a"}]}, "modelCache": {"enabled": True}}
NAME = "fleet-muxfleet"
RAY_SERVICE = ("ray.io/v1", "rayservices", "llm", NAME)


@pytest.fixture
def store(custom_schemas: CustomSchemas) -> ObjectStore:
    return ObjectStore(custom_schemas)


@pytest.fixture
def client(helm: Helm, store: ObjectStore, tmp_path: Path) -> Iterator[Helm]:
    with api_standin(store) as address:
        config = tmp_path / "kubeconfig"
        config.write_text(kubeconfig(address))
        yield Helm(version=helm.version, home=helm.home, environment={"KUBECONFIG": str(config)})


def done(client: Helm, *arguments: str | Path, values: dict[str, Any] | None = None) -> str:
    if values is not None:
        arguments = (*arguments, "--values", "-")
    outcome = client.run(*arguments, "--namespace", "llm", stdin=None if values is None else yaml.safe_dump(values))
    assert outcome.code == 0, outcome.errors
    return outcome.output


def policy(store: ObjectStore) -> str:
    config = yaml.load(store.get(RAY_SERVICE)["spec"]["serveConfigV2"], LOADER)
    (control,) = [a for a in config["applications"] if a["name"] == CONTROL_APP]
    (controller,) = control["deployments"]
    return str(controller["user_config"]["policy"])


def test_life_of_a_release__install_upgrade_rollback_test_uninstall__leaves_nothing_but_the_models(
    client: Helm, store: ObjectStore, chart: Path
) -> None:
    notes = done(client, "install", "fleet", chart, values=BASE)
    installed = store.get(RAY_SERVICE)
    assert f"kubectl -n llm wait --for=condition=Ready rayservice/{NAME} --timeout=30m" in notes
    assert f"port-forward svc/{NAME}-serve-svc 8000:8000" in notes
    assert policy(store) == "mux"

    done(client, "upgrade", "fleet", chart, values=merged(BASE, {"fleet": {"engine": {"policy": "adbs"}}}))
    upgraded = store.get(RAY_SERVICE)
    assert policy(store) == "adbs"
    assert upgraded["metadata"]["generation"] == installed["metadata"]["generation"] + 1
    assert upgraded["metadata"]["uid"] == installed["metadata"]["uid"]
    assert upgraded["spec"]["rayClusterConfig"] == installed["spec"]["rayClusterConfig"]

    done(client, "rollback", "fleet", "1")
    assert policy(store) == "mux"
    assert store.get(RAY_SERVICE)["spec"] == installed["spec"]

    tested = done(client, "test", "fleet", "--timeout", "60s")
    assert "Phase:          Succeeded" in tested
    assert [kind for kind, _ in store.contents() if kind == "Pod"] == [], "hook-succeeded deletes the pod"

    history = yaml.safe_load(done(client, "history", "fleet", "--output", "yaml"))
    assert [entry["status"] for entry in history] == ["superseded", "superseded", "deployed"]
    done(client, "uninstall", "fleet")
    assert store.contents() == [("PersistentVolumeClaim", f"{NAME}-models")], "the models stay, nothing else"


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_install__any_ci_values__is_accepted(client: Helm, store: ObjectStore, chart: Path, values: Path) -> None:
    done(client, "install", "fleet", chart, "--values", values)

    assert ("RayService", NAME) in store.contents()


# Values that the chart's schema cannot judge, and what a user sees from the server.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "mount at a taken path": (
        {"head": {"volumeMounts": [{"name": "home", "mountPath": "/tmp"}]}},
        '"/tmp": another volume is mounted there',
    ),
    "environment of an extra object twice": (
        {
            "extraObjects": [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": "x"},
                    "spec": {"containers": [{"name": "x", "image": "x", "env": [{"name": "A"}, {"name": "A"}]}]},
                }
            ]
        },
        "A is there 2 times",
    ),
    "label that is none": (
        {
            "extraObjects": [
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "labels": {"a": "b c"}}}
            ]
        },
        "metadata.labels",
    ),
    "unknown field of an extra object": (
        {"extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "dta": {}}]},
        "'dta'",
    ),
    "route with a path that is none": (
        {
            "extraObjects": [
                {
                    "apiVersion": "gateway.networking.k8s.io/v1",
                    "kind": "HTTPRoute",
                    "metadata": {"name": "x"},
                    "spec": {"rules": [{"matches": [{"path": {"type": "PathPrefix", "value": "v1"}}]}]},
                }
            ]
        },
        "absolute path",
    ),
    "monitor without a selector": (
        {
            "extraObjects": [
                {
                    "apiVersion": "monitoring.coreos.com/v1",
                    "kind": "PodMonitor",
                    "metadata": {"name": "x"},
                    "spec": {"podMetricsEndpoints": []},
                }
            ]
        },
        "'selector' is a required property",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_install__what_a_server_refuses__fails_with_its_reason(
    client: Helm, store: ObjectStore, chart: Path, case: str
) -> None:
    overrides, reason = REFUSED[case]

    outcome = client.run(
        "install", "fleet", chart, "--namespace", "llm", "--values", "-", stdin=yaml.safe_dump(merged(BASE, overrides))
    )

    assert outcome.code != 0
    assert reason in outcome.errors, outcome.errors


def test_install__environment_that_the_chart_sets_too__is_taken_and_ones_own(
    client: Helm, store: ObjectStore, chart: Path
) -> None:
    """A server refuses a name that is there twice."""
    done(
        client,
        "install",
        "fleet",
        chart,
        values=merged(BASE, {"workers": {"env": [{"name": "HF_HOME", "value": "/x"}]}}),
    )

    (group,) = store.get(RAY_SERVICE)["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    env = group["template"]["spec"]["containers"][0]["env"]
    assert [v["value"] for v in env if v["name"] == "HF_HOME"] == ["/x"]


def test_upgrade__refused_by_the_server__leaves_the_running_fleet(
    client: Helm, store: ObjectStore, chart: Path
) -> None:
    done(client, "install", "fleet", chart, values=BASE)
    before = store.get(RAY_SERVICE)

    outcome = client.run(
        "upgrade", "fleet", chart, "--namespace", "llm", "--values", "-",
        stdin=yaml.safe_dump(merged(BASE, {"head": {"volumeMounts": [{"name": "home", "mountPath": "/tmp"}]}})),
    )  # fmt: skip

    assert "UPGRADE FAILED" in outcome.errors
    assert store.get(RAY_SERVICE) == before


def test_operators_rules__broken_services__are_refused_by_the_standin(custom_schemas: CustomSchemas) -> None:
    """The stand-in itself: what it lets through would be called valid."""
    golden = (Path(__file__).with_name("golden") / "incremental-upgrade.yaml").read_text()
    (service,) = [d for d in yaml.load_all(golden, LOADER) if d and d["kind"] == "RayService"]
    cluster = service["spec"]["rayClusterConfig"]
    group, strategy = cluster["workerGroupSpecs"][0], service["spec"]["upgradeStrategy"]
    container = group["template"]["spec"]["containers"][0]
    put = ObjectStore(custom_schemas).create
    key = ("ray.io/v1", "rayservices", "llm", service["metadata"]["name"])
    put(key, yaml.safe_load(yaml.safe_dump(service)), is_dry=True)
    accepted = []
    for where, name, value in [
        (service["spec"], "serveConfig", "x"),
        (service["spec"], "rayClusterConfig", None),
        (service["spec"], "serveConfigV2", {"applications": []}),
        (service["spec"], "serveConfigV2", "applications: [{name: a, import_path: a:b, route_prefx: /}]"),
        (service["spec"], "serveConfigV2", service["spec"]["serveConfigV2"].replace("hold_s:", "hold:")),
        (service["spec"], "serveConfigV2", service["spec"]["serveConfigV2"].replace("expected_units:", "units:")),
        (service["spec"], "rayClusterDeletionDelaySeconds", -1),
        (service["spec"], "managedBy", "me"),
        (strategy, "type", "NewCluter"),
        (strategy["clusterUpgradeOptions"], "stepSizePercent", 90),
        (strategy["clusterUpgradeOptions"], "intervalSeconds", 0),
        (strategy["clusterUpgradeOptions"], "gatewayClassName", None),
        (cluster, "enableInTreeAutoscaling", False),
        (cluster, "workerGroupSpec", []),
        (cluster, "gcsFaultToleranceOptions", {"backend": "etcd"}),
        (cluster, "rayVersion", ""),
        (cluster["autoscalerOptions"], "version", "v3"),
        (cluster["headGroupSpec"], "template", None),
        (cluster["headGroupSpec"]["rayStartParams"], "num-cpus", 0),
        (group, "groupName", None),
        (group, "groupName", "Big_Pool"),
        (group, "replicas", "1"),
        (group, "minReplicas", 9),
        (group, "maxReplicas", 2**31),
        (container, "name", None),
        (container, "ports", [{"name": "http", "containerPort": 8000}]),
        (container, "resources", {"limits": {"memory": "32 Gigs"}}),
        (container, "resources", {"requests": {"cpu": "8"}, "limits": {"cpu": "4"}}),
        (container, "env", [{"name": "A", "value": 1}]),
        (container, "volumeMounts", [{"name": "tmp"}]),
        (container, "volumeMounts", [{"name": "nope", "mountPath": "/x"}]),
        (service["metadata"], "name", "a" * 60),
    ]:
        before = where.get(name)
        where[name] = value
        if value is None:
            del where[name]
        broken = yaml.safe_load(yaml.safe_dump(service))
        where[name] = before
        if before is None:
            del where[name]
        try:
            put((*key[:3], broken["metadata"]["name"]), broken, is_dry=True)
        except Refused:
            continue
        accepted.append((name, value))

    assert not accepted
