"""What the chart renders for the rolling update: its Job, its rights, the labels by which it tells pods apart."""

from pathlib import Path
from typing import Any

import pytest
from helm_runner import Helm, groups, minimal_objects, of_kind, ray_service

pytestmark = pytest.mark.k8s


def test_rights__of_the_rolling_update__are_its_own_and_no_more(helm4: Helm, chart: Path) -> None:
    documents = minimal_objects(helm4, chart, {})
    (role,), (binding,), (job,) = (of_kind(documents, kind) for kind in ("Role", "RoleBinding", "Job"))
    rights = {(r["resources"][0], *r.get("resourceNames", []), *r["verbs"]) for r in role["rules"]}
    pods = [group["template"]["spec"]["serviceAccountName"] for group in groups(ray_service(documents))]

    assert rights == {
        ("rayservices", "fleet-muxfleet", "get"),
        ("services", "fleet-muxfleet-serve-svc", "get", "patch"),
        ("rayclusters", "get", "patch"),
        ("pods", "list"),
        ("pods/eviction", "create"),
    }
    assert [s["name"] for s in binding["subjects"]] == [job["spec"]["template"]["spec"]["serviceAccountName"]]
    assert job["spec"]["template"]["spec"]["serviceAccountName"] not in pods


@pytest.mark.parametrize("strategy", ["NewCluster", "None"])
def test_rights__of_other_strategies__are_none(helm4: Helm, chart: Path, strategy: str) -> None:
    documents = minimal_objects(helm4, chart, {"upgrade": {"strategy": strategy}})

    assert {d["kind"] for d in documents} & {"Role", "RoleBinding", "Job"} == set()
    assert ray_service(documents)["spec"]["upgradeStrategy"]["type"] == strategy


def templates(service: dict[str, Any]) -> list[str]:
    return [group["template"]["metadata"]["labels"]["muxfleet.io/template"] for group in groups(service)]


@pytest.mark.parametrize(
    ("overrides", "changed"),
    [
        ({"fleet": {"engine": {"policy": "adbs"}, "gateway": {"hold_s": 3.0}}}, [False, False]),
        ({"podDisruptionBudget": {"maxUnavailable": 2}, "fleet": {"pools": [{"nodes": {"min": 2}}]}}, [False, False]),
        ({"image": {"tag": "2"}}, [True, True]),
        ({"workers": {"env": [{"name": "A", "value": "1"}]}}, [False, True]),
        ({"fleet": {"pools": [{"node_labels": {"a": "b"}}]}}, [False, True]),
        ({"head": {"tolerations": [{"operator": "Exists"}]}}, [True, False]),
    ],
    ids=str,
)
def test_template_label__of_pods__differs_where_their_pods_have_to_be_replaced(
    helm4: Helm, chart: Path, overrides: dict[str, Any], changed: list[bool]
) -> None:
    before, after = (templates(ray_service(minimal_objects(helm4, chart, values))) for values in ({}, overrides))

    assert [a != b for a, b in zip(before, after, strict=True)] == changed


@pytest.mark.parametrize(
    "change",
    [
        {"image": {"tag": "2"}},
        {"fleet": {"pools": [{"nodes": {"min": 2}}]}},
        {"service": {"type": "LoadBalancer"}},
    ],
    ids=str,
)
def test_rollout_job__of_changed_pods__is_another_and_waits_for_their_service(
    helm4: Helm, chart: Path, change: dict[str, Any]
) -> None:
    """Helm makes Jobs before it changes RayServices, and cannot change a Job that is there."""
    revisions, names = set(), set()
    for values in ({}, change, {"fleet": {"engine": {"policy": "adbs"}}}):
        documents = minimal_objects(helm4, chart, values)
        (job,) = of_kind(documents, "Job")
        revision = ray_service(documents)["metadata"]["annotations"]["muxfleet.io/revision"]
        assert f"--revision={revision}" in job["spec"]["template"]["spec"]["containers"][0]["args"]
        revisions.add(revision)
        names.add(job["metadata"]["name"])

    assert len(revisions) == len(names) == 2


def test_rollout_job__long_release__has_a_name_that_kubernetes_takes(helm4: Helm, chart: Path) -> None:
    (job,) = of_kind(minimal_objects(helm4, chart, {}, release="a" * 53), "Job")

    assert len(job["metadata"]["name"]) <= 63


def test_rollout_job__and_its_pods__are_found_by_the_same_label(helm4: Helm, chart: Path) -> None:
    """A Job that failed is deleted by it, so that Helm makes it anew."""
    (job,) = of_kind(minimal_objects(helm4, chart, {}), "Job")

    for metadata in (job["metadata"], job["spec"]["template"]["metadata"]):
        assert metadata["labels"]["app.kubernetes.io/component"] == "rollout"
