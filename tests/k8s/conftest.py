"""`make test-k8s` runs this folder; other runs of pytest leave it alone: it needs tools that they do not have."""

from pathlib import Path
from zlib import crc32

import pytest
from helm_runner import TOOLS, VERSIONS, Helm, copied_chart
from kubernetes_schemas import CustomSchemas
from long_tests import TURNS

_ALWAYS = "test_chart_renders.py"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves a day of CI a third of the tests, but for those of whole charts, each under one Helm: what they look at
    are the chart's templates, which both evaluate alike.
    """
    if (turn := config.getoption("turn")) is not None:
        items[:] = [item for item in items if item.path.name == _ALWAYS or _has_its_turn(item, turn)]


def _has_its_turn(item: pytest.Item, number: int) -> bool:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    version = parameters.get("helm")
    turn, helm = divmod(crc32(item.nodeid.replace(str(version), "").encode()), len(VERSIONS))
    return turn % TURNS == number % TURNS and version in (None, VERSIONS[(helm + number // TURNS) % len(VERSIONS)])


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
