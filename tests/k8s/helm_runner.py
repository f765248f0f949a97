"""The real helm, on a copy of the chart."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm"
CI_VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
APIS = ("monitoring.coreos.com/v1", "gateway.networking.k8s.io/v1")
TOOLS = Path(os.environ.get("MUXFLEET_K8S_TOOLS", ROOT / ".tools"))
VERSIONS = ("helm3", "helm4")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MINIMAL = {"fleet": {"models": [{"id": "qwen-small", "source": "Qwen/Qwen2.5-0.5B-Instruct"}]}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    code: int
    output: str
    errors: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Helm:
    version: str
    home: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str | Path, stdin: str | None = None, timeout_s: float = 120.0) -> Outcome:
        homes = {f"HELM_{kind}_HOME": str(self.home / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        done = subprocess.run(
            [TOOLS / self.version / "helm" / "helm", *arguments],
            env=os.environ | homes | self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Outcome(code=done.returncode, output=done.stdout, errors=done.stderr)

    def template(
        self,
        chart: Path,
        *values: Path,
        overrides: Mapping[str, Any] | None = None,
        release: str = "fleet",
        apis: Sequence[str] = APIS,
        kubernetes: str = "1.35.0",
        namespace: str = "llm",
    ) -> Outcome:
        arguments = ["template", release, str(chart), "--namespace", namespace, "--kube-version", kubernetes]
        for file in values:
            arguments += ["--values", str(file)]
        for api in apis:
            arguments += ["--api-versions", api]
        if overrides is None:
            return self.run(*arguments)
        return self.run(*arguments, "--values", "-", stdin=yaml.safe_dump(overrides))


def copied_chart(folder: Path) -> Path:
    """With a stand-in for the subchart that users fetch by `helm dependency update`: helm wants it even when off."""
    chart = folder / "muxfleet"
    shutil.copytree(CHART, chart, ignore=shutil.ignore_patterns("charts"))
    subchart = chart / "charts" / "kuberay-operator"
    subchart.mkdir(parents=True)
    (subchart / "Chart.yaml").write_text("apiVersion: v2\nname: kuberay-operator\nversion: 1.7.0\n")
    return chart


def objects_of(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.load_all(text, LOADER) if document]


def of_kind(objects: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [o for o in objects if o["kind"] == kind]


def ray_service(objects: Sequence[dict[str, Any]]) -> dict[str, Any]:
    (found,) = of_kind(objects, "RayService")
    return found


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """As Helm merges values: mappings key by key, null removes."""
    out = dict(base)
    for key, value in over.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, Mapping):
            below = out.get(key)
            out[key] = merged(below if isinstance(below, Mapping) else {}, value)
        else:
            out[key] = value
    return out


def minimal_objects(helm: Helm, chart: Path, overrides: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    outcome = helm.template(chart, overrides=merged(MINIMAL, overrides), **options)
    assert outcome.code == 0, outcome.errors
    return objects_of(outcome.output)


def groups(service: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = service["spec"]["rayClusterConfig"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
