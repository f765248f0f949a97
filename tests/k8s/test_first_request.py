"""The pod of `helm test`, and the request that an install's notes print."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_runner import Helm, merged, objects_of, of_kind

pytestmark = pytest.mark.k8s

KEYS = {
    "fleet": {
        "models": [{"id": "a", "source": "org/a"}],
        "gateway": {"api_keys": "/etc/muxfleet/api-keys/keys.yaml"},
    },
    "apiKeys": {"existingSecret": "keys"},
}
TAINT = {"key": "dedicated", "operator": "Exists"}
ROLLING = {"upgrade": {"existingSecret": "admin", "key": "k"}}
NEW_CLUSTER = {"upgrade": {"strategy": "NewCluster"}}
OWN = {"tests": {"existingSecret": "own", "key": "t"}}


def pod_of(helm: Helm, chart: Path, *overrides: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = KEYS
    for override in overrides:
        values = merged(values, override)
    outcome = helm.template(chart, overrides=values)
    assert outcome.code == 0, outcome.errors
    (pod,) = of_kind(objects_of(outcome.output), "Pod")
    return dict(pod["spec"])


def test_pod__where_all_nodes_are_tainted__goes_where_the_head_goes(helm: Helm, chart: Path) -> None:
    head = {"head": {"tolerations": [TAINT], "nodeSelector": {"pool": "system"}}}

    pod = pod_of(helm, chart, ROLLING, head)

    assert pod["tolerations"] == [TAINT]
    assert pod["nodeSelector"] == {"pool": "system"}


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ([ROLLING], {"name": "admin", "key": "k"}),
        ([ROLLING, OWN], {"name": "own", "key": "t"}),
        ([NEW_CLUSTER, OWN], {"name": "own", "key": "t"}),
    ],
    ids=str,
)
def test_pod__of_a_gateway_that_asks_for_keys__has_one(
    helm: Helm, chart: Path, overrides: list[dict[str, Any]], key: dict[str, str]
) -> None:
    (variable,) = [v for v in pod_of(helm, chart, *overrides)["containers"][0]["env"] if v["name"] == "API_KEY"]

    assert variable["valueFrom"] == {"secretKeyRef": key}


def test_pod__without_a_key_for_a_gateway_that_asks__is_refused(helm: Helm, chart: Path) -> None:
    refused = helm.template(chart, overrides=merged(KEYS, NEW_CLUSTER))
    without = helm.template(chart, overrides=merged(KEYS, NEW_CLUSTER | {"tests": {"enabled": False}}))

    assert 'muxfleet: tests.existingSecret = "": helm test asks the gateway, which asks for keys' in refused.errors
    assert without.code == 0, without.errors


_WGET = """#!/bin/sh
case "$*" in *models*) printf '{"id": "a"}'; sleep 0.3; printf '{"id": "b"}'; sleep 0.3; printf '{"id": "c"}' ;; esac
case "$*" in *'"model": "a"'*) printf '{"text": "x"}'; sleep 0.3; printf ' ' ;; esac
"""


@pytest.mark.parametrize(("model", "is_served"), [("a", True), ("c", True), ("d", False)])
def test_pod__answers_come_in_pieces__all_are_read_and_told(
    helm: Helm, chart: Path, tmp_path: Path, model: str, is_served: bool
) -> None:
    """A check that stopped reading where it had found the model broke the pipe, and failed where many are served."""
    wget = tmp_path / "wget"
    wget.write_text(_WGET.replace('"model": "a"', '"model": "c"') if model == "c" else _WGET)
    wget.chmod(0o755)
    command = pod_of(helm, chart, ROLLING)["containers"][0]["command"]
    path = f"{tmp_path}:/usr/bin:/bin"

    ran = subprocess.run(
        command, env={"PATH": path, "URL": "http://x", "MODEL": model}, capture_output=True, text=True, timeout=60
    )

    assert (ran.returncode == 0) == is_served, ran.stderr
    assert '{"id": "a"}{"id": "b"}{"id": "c"}' in ran.stdout
    assert ('{"text": "x"}' in ran.stdout) == is_served


@pytest.mark.parametrize("asks", [True, False])
def test_notes__first_request__carries_a_key_where_the_gateway_asks(helm4: Helm, chart: Path, asks: bool) -> None:
    values = merged(KEYS, ROLLING if asks else {"apiKeys": None, "fleet": {"gateway": None}})

    told = helm4.run(
        "install", "fleet", chart, "--dry-run=client", "--namespace", "llm", "--values", "-",
        stdin=yaml.safe_dump(values),
    )  # fmt: skip

    assert told.code == 0, told.errors
    notes = told.output[told.output.index("NOTES:") :]
    assert ('-H "authorization: Bearer $MUXFLEET_API_KEY"' in notes) is asks
