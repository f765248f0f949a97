"""`make test-k8s` runs this folder; other runs of pytest leave it alone: it needs tools that they do not have."""

import os
from pathlib import Path
from zlib import crc32

import pytest
from helm_runner import TOOLS, VERSIONS, Helm, copied_chart
from kubernetes_schemas import CustomSchemas

_OF_BOTH = ("test_chart_renders.py", "test_standin_install.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves either Helm half of the tests in CI, but for those of whole charts and releases: what the others look at
    are the chart's templates, which both evaluate alike.
    """
    if os.environ.get("CI"):
        items[:] = [item for item in items if item.path.name in _OF_BOTH or _is_this_helms(item)]


def _is_this_helms(item: pytest.Item) -> bool:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    version = parameters.get("helm")
    of_either = item.nodeid.replace(str(version), "")
    return version in (None, VERSIONS[crc32(of_either.encode()) % len(VERSIONS)])


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
