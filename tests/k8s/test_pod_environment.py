"""Environment of one's own in pods that have some already: the API server takes each name once."""

from pathlib import Path
from typing import Any

import pytest
from helm_runner import Helm, merged, objects_of, ray_service
from kubernetes_schemas import CustomSchemas

pytestmark = pytest.mark.k8s

MINIMAL = {
    "fleet": {
        "models": [{"id": "a", "source": "org/a"}],
        "pools": [{"name": "p", "node_labels": {"p": "p"}}, {"name": "q", "node_labels": {"p": "q"}}],
    }
}
CACHE = {"name": "HF_HOME", "value": "/scratch/huggingface"}
OFFLINE = {"name": "HF_HUB_OFFLINE", "value": "1"}


def service_of(helm: Helm, chart: Path, overrides: dict[str, Any]) -> dict[str, Any]:
    outcome = helm.template(chart, overrides=merged(MINIMAL, overrides))
    assert outcome.code == 0, outcome.errors
    return ray_service(objects_of(outcome.output))


def environments(service: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = service["spec"]["rayClusterConfig"]
    containers = [
        group["template"]["spec"]["containers"][0] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    ]
    found = [{variable["name"]: variable.get("value") for variable in c["env"]} for c in containers]
    assert [len(c["env"]) for c in containers] == [len(names) for names in found], "a name is there twice"
    return found


@pytest.mark.parametrize(
    ("values", "homes"),
    [
        ({}, ["/var/lib/muxfleet/huggingface"] * 3),
        ({"head": {"env": [CACHE]}}, [CACHE["value"], *["/var/lib/muxfleet/huggingface"] * 2]),
        ({"workers": {"env": [OFFLINE, CACHE]}}, ["/var/lib/muxfleet/huggingface", *[CACHE["value"]] * 2]),
        (
            {"workers": {"env": [CACHE]}, "pools": {"q": {"env": []}}, "modelCache": {"enabled": True}},
            ["/models/huggingface", CACHE["value"], "/models/huggingface"],
        ),
    ],
    ids=str,
)
def test_environment__of_a_name_that_the_chart_sets__is_there_once_and_ones_own(
    helm: Helm, chart: Path, custom_schemas: CustomSchemas, values: dict[str, Any], homes: list[str]
) -> None:
    service = service_of(helm, chart, values)

    assert [env["HF_HOME"] for env in environments(service)] == homes
    assert custom_schemas.problems(service) == []


def test_environment__from_a_secret__replaces_the_charts(helm: Helm, chart: Path) -> None:
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "hub"}}}
    values = {"huggingFace": {"existingSecret": "hub"}, "workers": {"env": [token]}}

    cluster = service_of(helm, chart, values)["spec"]["rayClusterConfig"]

    for group in cluster["workerGroupSpecs"]:
        env = group["template"]["spec"]["containers"][0]["env"]
        assert [v for v in env if v["name"] == "HF_TOKEN"] == [token]


def test_environment__of_ones_own__comes_last(helm4: Helm, chart: Path) -> None:
    """So that it can refer to the chart's, as in $(HOME)."""
    plain, more = (environments(service_of(helm4, chart, v)) for v in ({}, {"workers": {"env": [CACHE, OFFLINE]}}))

    assert list(more[1]) == [n for n in plain[1] if n != CACHE["name"]] + [CACHE["name"], OFFLINE["name"]]
