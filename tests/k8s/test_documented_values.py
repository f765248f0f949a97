"""The values that docs/kubernetes-values.md shows, each block beside a small fleet."""

import re
from pathlib import Path

import pytest
import yaml
from helm_runner import ROOT, Helm, merged, objects_of
from kubernetes_schemas import CustomSchemas
from operator_rules import object_problems

pytestmark = pytest.mark.k8s

PAGE = (ROOT / "docs" / "kubernetes-values.md").read_text()
BLOCKS = re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
SHOWN = [
    pytest.param(block, id=f"{title} {i}")
    for title, text in BLOCKS
    for i, block in enumerate(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
]
FLEET = {
    "fleet": {
        "models": [{"id": "a", "source": "org/a"}],
        "pools": [{"name": "p", "device": "cuda", "gpu_type": "H100", "nodes": {"min": 2}}],
    }
}


def test_page__shows_values() -> None:
    assert len(SHOWN) >= 8


@pytest.mark.parametrize("block", SHOWN)
def test_values__as_shown__are_taken_and_valid(
    helm: Helm, chart: Path, custom_schemas: CustomSchemas, block: str
) -> None:
    outcome = helm.template(chart, overrides=merged(FLEET, yaml.safe_load(block)))

    assert outcome.code == 0, outcome.errors
    documents = objects_of(outcome.output)
    assert [p for d in documents for p in [*custom_schemas.problems(d), *object_problems(d)]] == []
