"""`helm template`: what the objects of a release are called, and what they name."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from helm_runner import MINIMAL, Helm, minimal_objects, of_kind, ray_service

pytestmark = pytest.mark.k8s

DIGITS = "12345"


def leaves(node: object) -> Iterator[object]:
    """Yields keys of mappings, too."""
    if isinstance(node, dict | list):
        for item in [*node, *node.values()] if isinstance(node, dict) else node:
            yield from leaves(item)
    else:
        yield node


def test_names__of_digits__are_text(helm4: Helm, chart: Path) -> None:
    secret = {"existingSecret": DIGITS, "key": DIGITS}
    manifests = minimal_objects(
        helm4,
        chart,
        {
            "nameOverride": DIGITS,
            "fleet": {
                "gateway": {"api_keys": f"/etc/muxfleet/api-keys/{DIGITS}"},
                "pools": [{"name": DIGITS, "nodes": {"min": 2}}],
            },
            "apiKeys": {"existingSecret": DIGITS},
            "huggingFace": secret,
            "upgrade": secret,
            "tests": secret,
            "rayAuth": {"mode": "token", "existingSecret": DIGITS},
            "redis": {"address": "redis:6379", "existingSecret": DIGITS, "passwordKey": DIGITS},
            "modelCache": {"enabled": True, "existingClaim": DIGITS},
            "serviceAccount": {"name": DIGITS},
            "networkPolicy": {"enabled": True, "operatorNamespace": DIGITS, "monitoringNamespace": DIGITS},
            **{pods: {"runtimeClassName": DIGITS, "priorityClassName": DIGITS} for pods in ("head", "workers")},
        },
    )

    found = [leaf for manifest in manifests for leaf in leaves(manifest) if str(leaf) == DIGITS]
    assert len(found) > 33
    assert {type(leaf) for leaf in found} == {str}


def test_names__namespace_of_digits__is_text(helm4: Helm, chart: Path) -> None:
    (binding,) = of_kind(minimal_objects(helm4, chart, {}, namespace=DIGITS), "RoleBinding")

    assert [subject["namespace"] for subject in binding["subjects"]] == [DIGITS]


def test_names__long_releases_that_begin_alike__are_other_objects(helm4: Helm, chart: Path) -> None:
    """Those that differ within what is kept of a release's name."""
    names = [
        {(found["kind"], found["metadata"]["name"]) for found in minimal_objects(helm4, chart, {}, release=release)}
        for release in ("a" * 43 + "-one", "a" * 43 + "-two")
    ]

    assert names[0].isdisjoint(names[1])


def test_names__pool_that_is_called_as_the_head__has_a_budget_beside_the_heads(helm4: Helm, chart: Path) -> None:
    overrides = {
        "podDisruptionBudget": {"protectHead": True},
        "fleet": {"pools": [{"name": "ray-head", "nodes": {"min": 2}}]},
    }
    budgets = of_kind(minimal_objects(helm4, chart, overrides), "PodDisruptionBudget")

    assert len({budget["metadata"]["name"] for budget in budgets}) == len(budgets) == 2


def test_names__word_that_yaml_reads_as_truth__is_text(helm4: Helm, chart: Path) -> None:
    switched_on = {"enabled": True}
    more = {"ingress": switched_on, "networkPolicy": switched_on, "monitoring": {"rules": switched_on}}
    manifests = minimal_objects(helm4, chart, {"fullnameOverride": "true", **more})
    (job,), roles = of_kind(manifests, "Job"), of_kind(manifests, "Role")
    named = {manifest["kind"] for manifest in manifests if manifest["metadata"]["name"] == "true"}

    assert job["spec"]["template"]["spec"]["containers"][0]["command"][-1] == "true"
    assert ["true"] in [rule.get("resourceNames") for role in roles for rule in role["rules"]]
    assert named == {"RayService", "Ingress", "NetworkPolicy", "PrometheusRule", "ServiceAccount"}


def test_names__long_release__stay_within_kuberays_limit(helm: Helm, chart: Path) -> None:
    service = ray_service(minimal_objects(helm, chart, {}, release="a" * 53))

    assert len(service["metadata"]["name"]) == 47


@pytest.mark.parametrize("release", ["7b-models", "team.fleet"])
def test_names__release_that_kuberay_takes_no_name_from__is_told_what_to_set(
    helm: Helm, chart: Path, release: str
) -> None:
    refused = helm.template(chart, overrides=MINIMAL, release=release)

    assert refused.code != 0
    assert f'muxfleet: fullnameOverride = "": the fleet would be called {release}-muxfleet' in refused.errors
    assert ray_service(minimal_objects(helm, chart, {"fullnameOverride": "models"}, release=release))
