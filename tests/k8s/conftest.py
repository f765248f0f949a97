"""`make test-k8s` runs this folder; other runs of pytest leave it alone: it needs tools that they do not have."""

import os
from pathlib import Path
from zlib import crc32

import pytest
from helm_runner import TOOLS, VERSIONS, Helm, copied_chart
from kubernetes_schemas import CustomSchemas

_OF_EITHER = ("test_chart_refusals.py", "test_chart_unrunnable_values.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shows each broken value to one Helm in CI, half of them to either: what refuses them is the chart, not Helm."""
    if os.environ.get("CI"):
        items[:] = [item for item in items if item.path.name not in _OF_EITHER or _is_this_helms(item)]


def _is_this_helms(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    parameters = item.callspec.params
    version, case = parameters["helm"], repr({**parameters, "helm": None})
    return bool(VERSIONS[crc32(case.encode()) % len(VERSIONS)] == version)


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
    """Fails where they are absent: a run without them would have validated nothing."""
    files = sorted((TOOLS / "crds").glob("*.yaml"))
    if not files:
        pytest.fail("the CRDs are not here; scripts/k8s_crds.sh .tools fetches them or says where they are to be had")
    return files


def _helm(version: str, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    if not (TOOLS / version).is_dir():
        pytest.fail(f"{version} is not here; scripts/k8s_tools.sh .tools fetches it")
    return Helm(version=version, home=tmp_path_factory.mktemp(version))
