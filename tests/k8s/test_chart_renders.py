"""`helm template` of every ci/*-values.yaml: schemas, operator rules, golden files, what a bump may not change."""

import copy
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_runner import CI_VALUES, LOADER, MINIMAL, Helm, groups, minimal_objects, objects_of, of_kind, ray_service
from kubernetes_schemas import CustomSchemas
from operator_rules import budget_problems, object_problems

from deploy.fleet_file.section import DrainSection

pytestmark = pytest.mark.k8s

GOLDEN = Path(__file__).with_name("golden")
DIGEST, OTHER_DIGEST = f"sha256:{'0' * 64}", f"sha256:{'1' * 64}"


def rendered(helm: Helm, chart: Path, values: Path, **options: Any) -> str:
    outcome = helm.template(chart, values, **options)
    assert outcome.code == 0, outcome.errors
    return outcome.output


def test_ci_values__folder__has_the_ten_kinds() -> None:
    assert {file.name.removesuffix("-values.yaml") for file in CI_VALUES} == {
        "minimal",
        "cpu-demo",
        "multi-pool-gpu",
        "ha-redis",
        "incremental-upgrade",
        "gateway-api",
        "monitoring",
        "network-policy",
        "existing-secrets",
        "openshift",
    }


def test_drain__longer_than_by_default__times_of_serve_ray_and_kubernetes_follow(helm4: Helm, chart: Path) -> None:
    drain = DrainSection(move_s=200.0, finish_s=300.5)
    service = ray_service(minimal_objects(helm4, chart, {"fleet": {"drain": drain.model_dump()}}))
    _, worker = groups(service)
    pod = worker["template"]["spec"]
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    grace = {d["name"]: d["graceful_shutdown_timeout_s"] for a in config["applications"] for d in a["deployments"]}
    env = {v["name"]: v.get("value") for v in pod["containers"][0]["env"]}

    assert grace == {"Unit": 510.5, "Controller": 10.0, "Gateway": 310.5}
    assert float(env["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]) == drain.node_s == 540.5
    assert pod["terminationGracePeriodSeconds"] == 551 >= drain.pod_s


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_lint__any_ci_values__is_clean(helm: Helm, chart: Path, values: Path) -> None:
    apis = ["monitoring.coreos.com/v1", "gateway.networking.k8s.io/v1"]
    arguments = ["lint", "--strict", str(chart), "--values", str(values), "--kube-version", "1.35.0"]
    if values.stem.startswith(("monitoring", "gateway-api")):
        pytest.skip(f"helm lint cannot be told of {apis}; the render of these values is tested")

    outcome = helm.run(*arguments)

    assert outcome.code == 0, outcome.output + outcome.errors


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_template__any_ci_values__is_as_the_golden_file(helm: Helm, chart: Path, values: Path) -> None:
    golden = GOLDEN / f"{values.stem.removesuffix('-values')}.yaml"
    text = rendered(helm, chart, values)
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)

    assert text == golden.read_text(), "look at the difference; if it is meant: UPDATE_GOLDEN=1 make test-k8s"


@pytest.mark.parametrize("kubernetes", ["1.28.0", "1.35.0"])
@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_template__any_ci_values__passes_schemas_and_operator_rules(
    helm4: Helm, chart: Path, custom_schemas: CustomSchemas, values: Path, kubernetes: str
) -> None:
    documents = objects_of(rendered(helm4, chart, values, kubernetes=kubernetes))
    problems = [
        f"{document['kind']} {document['metadata']['name']}: {problem}"
        for document in documents
        for problem in [*custom_schemas.problems(document), *object_problems(document)]
    ]

    assert of_kind(documents, "RayService")
    assert not problems


def test_template__old_kubernetes__is_refused_by_name(helm: Helm, chart: Path) -> None:
    outcome = helm.template(chart, overrides=MINIMAL, kubernetes="1.27.0")

    assert outcome.code != 0
    assert "chart requires kubeVersion: >=1.28.0-0" in outcome.errors


def test_bump__of_chart_models_slos_and_policy__leaves_the_ray_cluster_alone(
    helm4: Helm, chart: Path, tmp_path: Path
) -> None:
    """KubeRay answers a changed rayClusterConfig with a second cluster: twice the GPUs."""
    bumped = tmp_path / "muxfleet"
    bumped.mkdir()
    for path in chart.rglob("*"):
        if path.is_file():
            target = bumped / path.relative_to(chart)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    description = yaml.load((bumped / "Chart.yaml").read_text(), LOADER)
    (bumped / "Chart.yaml").write_text(yaml.safe_dump(description | {"version": "9.9.9", "description": "other"}))
    for name, first in (("_pods.tpl", "metadata:\n"), ("_raycluster.tpl", "rayVersion:")):
        template = bumped / "templates" / name
        text = template.read_text()
        assert first in text
        template.write_text(text.replace(first, f"# The same, written otherwise.\n{first}", 1))
    changed = {
        "fleet": {
            "models": [
                {"id": "other", "source": "org/other", "slo": {"ttft_s": 9.0}},
                {"id": "second", "source": "org/second"},
            ],
            "engine": {"policy": "adbs", "max_batch_tokens": 999},
            "gateway": {"hold_s": 5.0, "replicas": 5},
        },
        "service": {"type": "LoadBalancer"},
        "monitoring": {"dashboards": {"enabled": True}},
        "podDisruptionBudget": {"maxUnavailable": 3},
        "tests": {"timeoutSeconds": 5},
        "upgrade": {"deletionDelaySeconds": 5},
    }

    before, after = ray_service(minimal_objects(helm4, chart, {})), ray_service(minimal_objects(helm4, bumped, changed))

    assert before["spec"]["serveConfigV2"] != after["spec"]["serveConfigV2"]
    assert before["metadata"]["labels"] != after["metadata"]["labels"]
    assert before["spec"]["rayClusterConfig"] == after["spec"]["rayClusterConfig"]


@pytest.mark.parametrize(
    "overrides",
    [
        {"image": {"tag": "2"}},
        {"workers": {"env": [{"name": "A", "value": "1"}]}},
        {"fleet": {"gateway": {"proxy": "python"}}},
    ],
    ids=str,
)
def test_bump__of_what_pods_are_made_of__changes_the_ray_cluster(
    helm4: Helm, chart: Path, overrides: dict[str, Any]
) -> None:
    before, after = (
        ray_service(minimal_objects(helm4, chart, {})),
        ray_service(minimal_objects(helm4, chart, overrides)),
    )

    assert before["spec"]["rayClusterConfig"] != after["spec"]["rayClusterConfig"]


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_pods__any_ci_values__are_hardened_and_have_no_workload_on_the_head(
    helm4: Helm, chart: Path, values: Path
) -> None:
    documents = objects_of(rendered(helm4, chart, values))
    service = ray_service(documents)
    pods = [group["template"]["spec"] for group in groups(service)] + [p["spec"] for p in of_kind(documents, "Pod")]
    pods += [job["spec"]["template"]["spec"] for job in of_kind(documents, "Job")]

    assert len(pods) >= 3
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert "runAsUser" not in pod["securityContext"]
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert service["spec"]["rayClusterConfig"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert service["spec"]["excludeHeadPodFromServeSvc"] is True
    assert not re.search(r"kind: ClusterRole", yaml.safe_dump_all(documents))


def test_pods__openshift__name_no_user_or_group(helm: Helm, chart: Path) -> None:
    (values,) = [file for file in CI_VALUES if file.stem.startswith("openshift")]
    text = rendered(helm, chart, values)

    assert not re.search(r"fsGroup:|runAsUser|runAsGroup|supplementalGroups", text)


def test_token__of_the_service_account__is_mounted_in_an_autoscaling_head_only(helm4: Helm, chart: Path) -> None:
    plain = groups(ray_service(minimal_objects(helm4, chart, {})))
    scaling = groups(ray_service(minimal_objects(helm4, chart, {"autoscaling": {"enabled": True}})))

    assert [g["template"]["spec"]["automountServiceAccountToken"] for g in plain] == [False, False]
    assert [g["template"]["spec"]["automountServiceAccountToken"] for g in scaling] == [True, False]


def test_pools__multi_pool_gpu__become_worker_groups_with_their_own_settings(helm4: Helm, chart: Path) -> None:
    (values,) = [file for file in CI_VALUES if file.stem.startswith("multi-pool")]
    h100, l40s = groups(ray_service(objects_of(rendered(helm4, chart, values))))[1:]
    pods = {group["groupName"]: group["template"]["spec"] for group in (h100, l40s)}

    assert [(g["groupName"], g["replicas"], g["minReplicas"], g["maxReplicas"]) for g in (h100, l40s)] == [
        ("h100", 2, 2, 2),
        ("l40s", 4, 4, 4),
    ]
    assert [g["labels"] for g in (h100, l40s)] == [{"muxfleet.io/pool": "h100"}, {"muxfleet.io/pool": "l40s"}]
    limits = {name: pod["containers"][0]["resources"]["limits"] for name, pod in pods.items()}
    assert limits == {
        "h100": {"cpu": "96", "memory": "900Gi", "nvidia.com/gpu": 8},
        "l40s": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": 1},
    }
    assert pods["h100"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]["muxfleet.io/pool"] == "h100"
    assert {v["name"]: v for v in pods["h100"]["volumes"]}["shm"]["emptyDir"]["sizeLimit"] == "64Gi"
    assert {v["name"]: v for v in pods["l40s"]["volumes"]}["shm"]["emptyDir"]["sizeLimit"] == "16Gi"
    assert "affinity" in pods["l40s"]
    assert "affinity" not in pods["h100"]
    assert all(pod["tolerations"][0]["key"] == "nvidia.com/gpu" for pod in pods.values())


@pytest.mark.parametrize(
    ("own", "image"),
    [
        ({}, f"registry/muxfleet@{DIGEST}"),
        ({"tag": "0.1.0-cuda"}, "registry/muxfleet:0.1.0-cuda"),
        ({"repository": "registry/sglang"}, "registry/sglang:0.1.0"),
        ({"repository": "registry/sglang", "tag": "1", "digest": OTHER_DIGEST}, f"registry/sglang@{OTHER_DIGEST}"),
    ],
)
def test_pool__with_an_image_of_its_own__leaves_the_others_theirs(
    helm: Helm, chart: Path, own: dict[str, str], image: str
) -> None:
    pools = [{"name": name, "node_labels": {"p": name}} for name in ("a", "b")]
    values = {
        "fleet": {"pools": pools},
        "image": {"repository": "registry/muxfleet", "digest": DIGEST},
        "pools": {"b": {"image": own}},
    }

    service = ray_service(minimal_objects(helm, chart, values))

    images = [group["template"]["spec"]["containers"][0]["image"] for group in groups(service)]
    assert images == [f"registry/muxfleet@{DIGEST}", f"registry/muxfleet@{DIGEST}", image]


def test_serve_environment__head_and_workers__is_the_same_but_for_the_drain(helm4: Helm, chart: Path) -> None:
    def serve_environment(group: dict[str, Any]) -> dict[str, str]:
        env = group["template"]["spec"]["containers"][0]["env"]
        return {v["name"]: v["value"] for v in env if v["name"].startswith("RAY_")}

    head, worker = map(serve_environment, groups(ray_service(minimal_objects(helm4, chart, {}))))
    drains = [env.pop("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S") for env in (head, worker)]

    assert drains == ["0", f"{DrainSection().node_s:g}"]
    assert head == worker
    assert head["RAY_SERVE_ENABLE_HA_PROXY"] == "1"


@pytest.mark.parametrize(
    ("values", "expected"), [({}, None), ({"rayAuth": {"mode": "disabled", "allowDisabled": True}}, "1")], ids=str
)
def test_open_cluster__allowed__applications_are_told_so(
    helm4: Helm, chart: Path, values: dict[str, Any], expected: str | None
) -> None:
    for group in groups(ray_service(minimal_objects(helm4, chart, values))):
        env = {v["name"]: v.get("value") for v in group["template"]["spec"]["containers"][0]["env"]}
        assert env.get("MUXFLEET_ALLOW_OPEN_RAY") == expected


def test_model_cache__kept__has_the_policy_and_an_existing_claim_makes_none(helm4: Helm, chart: Path) -> None:
    def claims(**cache: Any) -> list[dict[str, Any]]:
        return of_kind(
            minimal_objects(helm4, chart, {"modelCache": {"enabled": True} | cache}), "PersistentVolumeClaim"
        )

    assert claims()[0]["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "annotations" not in claims(keep=False)[0]["metadata"]
    assert claims(existingClaim="mine") == []


@pytest.mark.parametrize(
    ("nodes", "max_unavailable", "keeps"), [(1, 1, None), (2, 1, 1), (4, 1, 3), (4, 3, 1), (4, 9, None)]
)
def test_budget__of_a_pool__keeps_all_pods_but_those_that_a_drain_may_take(
    helm4: Helm, chart: Path, nodes: int, max_unavailable: int, keeps: int | None
) -> None:
    pool = {"name": "p", "nodes": {"min": nodes}}
    values = {"fleet": {"pools": [pool]}, "podDisruptionBudget": {"maxUnavailable": max_unavailable}}
    documents = minimal_objects(helm4, chart, values)

    specs = [budget["spec"] for budget in of_kind(documents, "PodDisruptionBudget")]
    assert groups(ray_service(documents))[1]["minReplicas"] == nodes
    assert [spec["minAvailable"] for spec in specs] == ([] if keeps is None else [keeps])
    assert all(set(spec) == {"minAvailable", "selector", "unhealthyPodEvictionPolicy"} for spec in specs)


def test_budget__of_pools_with_long_names__is_one_for_each(helm4: Helm, chart: Path) -> None:
    names = [f"nvidia-h100-80gb-sxm-zone-{zone}" for zone in "ab"]
    pools = [{"name": name, "nodes": {"min": 2}, "node_labels": {"pool": name}} for name in names]
    documents = minimal_objects(helm4, chart, {"fleet": {"pools": pools}}, release="a" * 53)

    found = {budget["metadata"]["name"] for budget in of_kind(documents, "PodDisruptionBudget")}
    assert found == {f"{'a' * 47}-{name}" for name in names}


def test_budget__of_the_head__keeps_its_pod(helm4: Helm, chart: Path) -> None:
    (budget,) = of_kind(
        minimal_objects(helm4, chart, {"podDisruptionBudget": {"protectHead": True}}), "PodDisruptionBudget"
    )

    assert budget["spec"]["minAvailable"] == 1
    assert budget["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] == "head"


@pytest.mark.parametrize("form", [{"maxUnavailable": 1}, {"maxUnavailable": 0}, {"minAvailable": "50%"}, {}], ids=str)
def test_budget__form_that_blocks_every_eviction__is_refused_by_the_rules(form: dict[str, Any]) -> None:
    selector = {"matchLabels": {"app.kubernetes.io/component": "worker"}}

    assert not list(budget_problems({"minAvailable": 1, "selector": selector}))
    assert len(list(budget_problems(form | {"selector": selector}))) == 1


def test_routes__service_of_the_gateway__is_the_one_kuberay_keeps_stable(helm4: Helm, chart: Path) -> None:
    route = of_kind(
        minimal_objects(helm4, chart, {"httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]}}), "HTTPRoute"
    )[0]
    incremental = {
        "autoscaling": {"enabled": True},
        "upgrade": {"strategy": "NewClusterWithIncrementalUpgrade", "gatewayClassName": "istio"},
    }
    pod = of_kind(minimal_objects(helm4, chart, incremental), "Pod")[0]

    assert route["spec"]["rules"][0]["backendRefs"] == [{"name": "fleet-muxfleet-serve-svc", "port": 8000}]
    assert pod["spec"]["containers"][0]["env"][0]["value"] == "http://fleet-muxfleet-head-svc.llm.svc:8000"


@pytest.mark.parametrize("kind", ["ingress", "httpRoute"])
def test_routes__from_outside__are_the_public_ones_and_on_demand_all(helm4: Helm, chart: Path, kind: str) -> None:
    """docs/security.md: metrics and control paths are not for the outside."""

    def routed(*paths: str) -> list[str]:
        own = {"enabled": True, "parentRefs": [{"name": "public"}]} if kind == "httpRoute" else {"enabled": True}
        documents = minimal_objects(helm4, chart, {kind: own | ({"paths": list(paths)} if paths else {})})
        if kind == "ingress":
            return [p["path"] for p in of_kind(documents, "Ingress")[0]["spec"]["rules"][0]["http"]["paths"]]
        return [m["path"]["value"] for m in of_kind(documents, "HTTPRoute")[0]["spec"]["rules"][0]["matches"]]

    security = Path("docs/security.md").read_text()
    (public,) = re.findall(r"^- \*\*Public\*\* .*?: (.*?)\. ", security, re.MULTILINE | re.DOTALL)
    told = [path.removesuffix("/*") for path in re.findall("`(/[^`]*)`", public)]
    assert len(told) > 4
    assert sorted(routed()) == sorted(told)
    assert routed("/") == ["/"]


def test_ingress__values_of_a_chart_that_had_one_path__are_rendered_as_they_were(helm4: Helm, chart: Path) -> None:
    (ingress,) = of_kind(minimal_objects(helm4, chart, {"ingress": {"enabled": True, "path": "/llm"}}), "Ingress")

    assert [path["path"] for path in ingress["spec"]["rules"][0]["http"]["paths"]] == ["/llm"]


def test_objects__given_along__are_rendered_as_they_are(helm4: Helm, chart: Path) -> None:
    extra = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "mine"},
        "data": {"a": "{{ not a template }}"},
    }

    assert of_kind(minimal_objects(helm4, chart, {"extraObjects": [copy.deepcopy(extra)]}), "ConfigMap") == [extra]
