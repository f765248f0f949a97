"""The image's recipe, the chart's own description and its values."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_runner import CHART, LOADER, ROOT
from jsonschema import Draft7Validator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.chart.generate import stale_files
from scripts.chart.kubernetes_types import extract, marks
from scripts.chart.values import OLDEST_RAY, RAY_VERSION, ChartValues
from scripts.chart.values_file import value_rows

pytestmark = pytest.mark.k8s

OPEN_SECTIONS = {"kuberay-operator", "global", "extraObjects"}


def test_generated_files__fleet_file_or_values_changed__are_up_to_date() -> None:
    assert [str(path.relative_to(ROOT)) for path in stale_files()] == [], "run `make chart`"


def test_kubernetes_types__in_the_schema__are_those_of_kubernetes() -> None:
    kept = json.loads((ROOT / "scripts" / "chart" / "kubernetes-1.35.json").read_text())

    assert kept == extract(marks(ChartValues.model_json_schema(by_alias=True)))


def test_values__each_key__has_a_comment_and_a_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    Draft7Validator.check_schema(schema)
    missing = [row.path for row in value_rows() if not row.description]

    assert not missing
    for row in value_rows():
        assert node_at(schema, row.path.split(".")) is not None, row.path


def test_schema__every_object__is_closed() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    assert {path for path in open_objects(schema, "") if path.split(".")[0] not in OPEN_SECTIONS} == set()


def node_at(schema: dict[str, Any], path: list[str]) -> Any:
    node: Any = schema
    for part in path:
        while "$ref" in node:
            node = schema["$defs"][node["$ref"].removeprefix("#/$defs/")]
        node = node["properties"][part]
    return node


def open_objects(schema: dict[str, Any], path: str) -> Iterator[str]:
    """Objects that take keys which they do not name. Maps name the type of their values."""
    definitions = schema["$defs"]
    for name, node in definitions.items():
        if name != "KubeRayOperator" and "properties" in node and node.get("additionalProperties") is not False:
            yield name
    for name, node in schema["properties"].items():
        is_object = node.get("type") == "object"
        if is_object and "properties" not in node and not isinstance(node.get("additionalProperties"), dict):
            yield name
    if schema.get("additionalProperties") is not False:
        yield path


def test_versions__chart_image_and_ray__are_the_packages() -> None:
    chart = yaml.load((CHART / "Chart.yaml").read_text(), LOADER)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)

    assert chart["appVersion"] == project["version"]
    assert pinned is not None
    assert pinned[1] == RAY_VERSION
    assert f"ray[serve]>={OLDEST_RAY.removesuffix('.0')}" in project["dependencies"]


def test_dockerfile__hadolint__finds_nothing() -> None:
    checked = subprocess.run(
        [Path(sys.executable).parent / "hadolint", "--config", ROOT / ".hadolint.yaml", ROOT / "Dockerfile"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout


def test_dockerfile__recipe__is_pinned_and_runs_as_a_number() -> None:
    text = (ROOT / "Dockerfile").read_text()

    assert re.search(r"^USER 10001:0$", text, re.MULTILINE)
    assert text.count("FROM ${BASE_IMAGE}") == 2
    assert {"bash", "wget"} <= set(text.split())
    assert "COPY --from=build /opt/muxfleet /opt/muxfleet" in text
    path = "/opt/muxfleet/bin/muxfleet-haproxy"
    assert path in (CHART / "templates" / "_pods.tpl").read_text(), "where the image has it"


def test_sglang_image__list_of_versions__has_all_that_muxfleet_needs_and_what_sglang_wants() -> None:
    """xgrammar's is SGLang's: there is none that both take."""
    lines = (ROOT / "constraints-sglang-cuda.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    names = {canonicalize_name(name): version for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["otel"]]
    needed = [Requirement(text) for text in wanted if not text.startswith("xgrammar")]
    tested = re.findall(
        r"^(sglang|transformers|xgrammar|ray)==(.+)$", (ROOT / "constraints-sglang.txt").read_text(), re.M
    )

    assert not [str(r) for r in needed if not r.specifier.contains(names.get(canonicalize_name(r.name), "0"))]
    assert {name: names[name] for name, _ in tested} == dict(tested), "what make test-sglang runs with"
    assert len(tested) == 4
    assert names["torch"] == "2.14.1"


@pytest.mark.skipif(
    not os.environ.get("MUXFLEET_IMAGES"), reason="builds images for minutes to hours: MUXFLEET_IMAGES=cpu,cuda,sglang"
)
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("variant", ["cpu", "cuda", "sglang"])
def test_image__built_by_buildah__runs_as_its_user(variant: str) -> None:
    if variant not in os.environ["MUXFLEET_IMAGES"].split(","):
        pytest.skip(f"MUXFLEET_IMAGES does not name {variant}")
    if missing := [program for program in ("buildah", "mmdebstrap") if shutil.which(program) is None]:
        pytest.skip(f"needs {' and '.join(missing)}: apt install buildah mmdebstrap")
    built = subprocess.run(
        ["bash", ROOT / "scripts" / "check_image.sh"],
        env=os.environ | {"VARIANT": variant},
        capture_output=True,
        text=True,
        timeout=7000,
        check=False,
    )

    assert built.returncode == 0, built.stdout[-4000:] + built.stderr[-4000:]


@pytest.mark.parametrize("script", ["k8s_crds.sh", "k8s_tools.sh", "check_image.sh", "kind_e2e.sh"])
def test_scripts__bash__parses_them(script: str) -> None:
    checked = subprocess.run(["bash", "-n", ROOT / "scripts" / script], capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stderr


def test_links__pages_about_kubernetes__lead_somewhere() -> None:
    pages = [ROOT / "docs" / f"{name}.md" for name in ("kubernetes", "production", "runbook")] + [CHART / "README.md"]
    broken = [
        f"{page.name}: {link}"
        for page in pages
        for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text())
        if not (page.parent / Path(link)).exists()
    ]

    assert not broken
