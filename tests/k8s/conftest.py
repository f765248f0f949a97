"""`make test-k8s` runs this folder; other runs of pytest leave it alone: it needs tools that they do not have."""

from pathlib import Path

import pytest
from helm_runner import TOOLS, VERSIONS, Helm, copied_chart
from kubernetes_schemas import CustomSchemas

SHARED = Path(__file__).resolve().parents[3] / "shared" / "k8s"


@pytest.fixture(scope="session", params=VERSIONS)
def helm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return _helm(request.param, tmp_path_factory)


@pytest.fixture(scope="session")
def helm4(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return _helm("helm4", tmp_path_factory)


@pytest.fixture(scope="session")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied_chart(tmp_path_factory.mktemp("chart"))


@pytest.fixture(scope="session")
def custom_schemas() -> CustomSchemas:
    return CustomSchemas.read(crd_files())


def crd_files() -> list[Path]:
    files = sorted(SHARED.glob("crds*/*.yaml"))
    if not files:
        pytest.skip("needs the CRDs of KubeRay, Gateway API and prometheus-operator in ../shared/k8s")
    return files


def _helm(version: str, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    if not (TOOLS / version).is_dir():
        pytest.skip(f"needs {version}: scripts/k8s_tools.sh .tools")
    return Helm(version=version, home=tmp_path_factory.mktemp(version))
