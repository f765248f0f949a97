"""Claims of weights that pods only read: clusters without a way to the hub."""

from pathlib import Path
from typing import Any

import pytest
from helm_runner import Helm, merged, objects_of, of_kind, ray_service

pytestmark = pytest.mark.k8s

FLEET = {"fleet": {"models": [{"id": "a", "source": "org/a"}]}}


def objects(helm: Helm, chart: Path, cache: dict[str, Any]) -> list[dict[str, Any]]:
    outcome = helm.template(chart, overrides=merged(FLEET, {"modelCache": {"enabled": True, **cache}}))
    assert outcome.code == 0, outcome.errors
    return objects_of(outcome.output)


@pytest.mark.parametrize(
    "cache",
    [
        {"existingClaim": "filled", "readOnly": True},
        {"existingClaim": "filled", "accessModes": ["ReadOnlyMany"], "mountPath": "/weights/"},
    ],
    ids=str,
)
def test_claim__to_read_from__is_mounted_so_and_the_hub_is_not_asked(
    helm: Helm, chart: Path, cache: dict[str, Any]
) -> None:
    documents = objects(helm, chart, cache)
    cluster = ray_service(documents)["spec"]["rayClusterConfig"]
    place = cache.get("mountPath", "/models")

    assert of_kind(documents, "PersistentVolumeClaim") == []
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        env = {v["name"]: v.get("value") for v in pod["containers"][0]["env"]}
        (volume,) = [v for v in pod["volumes"] if v["name"] == "models"]
        (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "models"]
        assert volume["persistentVolumeClaim"] == {"claimName": "filled", "readOnly": True}
        assert mount == {"name": "models", "mountPath": place, "readOnly": True}
        assert env["HF_HUB_CACHE"] == f"{place.rstrip('/')}/huggingface/hub"
        assert env["HF_HUB_OFFLINE"] == "1"
        assert env["HF_HOME"] == "/var/lib/muxfleet/huggingface", "what the library writes besides"


@pytest.mark.parametrize("cache", [{}, {"existingClaim": "filled"}], ids=str)
def test_claim__to_write_into__holds_the_hubs_cache(helm: Helm, chart: Path, cache: dict[str, Any]) -> None:
    cluster = ray_service(objects(helm, chart, cache))["spec"]["rayClusterConfig"]

    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        env = {v["name"]: v.get("value") for v in group["template"]["spec"]["containers"][0]["env"]}
        assert env["HF_HOME"] == "/models/huggingface"
        assert not {"HF_HUB_CACHE", "HF_HUB_OFFLINE"} & set(env)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"modelCache": {"enabled": True, "readOnly": True}},
            "muxfleet: modelCache.readOnly = true: a claim that the chart makes is empty, and nothing could be written "
            "into it; name a filled one in modelCache.existingClaim",
        ),
        (
            {
                "modelCache": {"enabled": True, "readOnly": True, "existingClaim": "filled"},
                "fleet": {"gateway": {"batches": {"folder": "batches"}}},
            },
            'muxfleet: fleet.gateway.batches.folder = "/models/batches": is written to, and pods mount the model cache '
            "to read from only; name a folder of a volume of yours",
        ),
    ],
    ids=["empty", "batches"],
)
def test_claim__to_read_from_what_must_be_written__is_refused(
    helm: Helm, chart: Path, overrides: dict[str, Any], message: str
) -> None:
    outcome = helm.template(chart, overrides=merged(FLEET, overrides))

    assert outcome.code != 0
    assert message in outcome.errors, outcome.errors
