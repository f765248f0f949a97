"""Values without what this chart has by default: those of a former chart, by `helm upgrade --reuse-values`."""

import json
from pathlib import Path
from typing import Any

import pytest
from helm_runner import CHART, Helm, merged

from scripts.chart.values_file import needed_paths

pytestmark = pytest.mark.k8s

FLEET: dict[str, Any] = {"fleet": {"models": [{"id": "a", "source": "org/a"}]}}
REMEDY = "upgrade with --reset-then-reuse-values, or name your file of values again"


def without(path: str) -> dict[str, Any]:
    overrides: Any = None
    for key in reversed(path.split(".")):
        overrides = {key: overrides}
    return dict(overrides)


@pytest.mark.parametrize("path", ["service.spec", "upgrade", "monitoring.rules.enabled", "tests.enabled", "image.tag"])
def test_values__of_a_former_chart__are_refused_with_the_remedy(helm: Helm, chart: Path, path: str) -> None:
    """A null removes a default."""
    outcome = helm.template(chart, overrides=merged(FLEET, {}) | without(path))

    assert outcome.code != 0
    assert f"muxfleet: {path}" in outcome.errors
    assert REMEDY in outcome.errors


def test_needed_values__of_the_chart__are_those_with_a_default() -> None:
    paths = json.loads((CHART / "files" / "needed-values.json").read_text())

    assert paths == needed_paths()
    assert {"service.type", "modelCache.mountPath", "podSecurityContext", "extraObjects"} <= set(paths)
    assert not {"fleet", "global", "workers.idleTimeoutSeconds", "head"} & set(paths), "may be null, or sections"


@pytest.mark.parametrize(
    "overrides",
    [{"podSecurityContext": {"fsGroup": None}}, {"workers": {"idleTimeoutSeconds": None}}, {"global": None}],
    ids=str,
)
def test_values__that_may_be_null__are_taken(helm: Helm, chart: Path, overrides: dict[str, Any]) -> None:
    outcome = helm.template(chart, overrides=FLEET | overrides)

    assert outcome.code == 0, outcome.errors
