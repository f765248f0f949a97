"""`make test-k8s` runs this folder; other runs of pytest leave it alone: it needs tools that they do not have."""

from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from control_plane import FOLDER, ControlPlane, running_control_plane
from helm_runner import TOOLS, VERSIONS, Helm, copied_chart
from kubernetes_schemas import CustomSchemas
from long_tests import TURNS
from server_store import ServerStore

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


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane | None]:
    """None: tests ask the stand-in for the API server."""
    if FOLDER is None:
        yield None
        return
    with running_control_plane(Path(FOLDER), tmp_path_factory.mktemp("control_plane")) as plane:
        ServerStore(plane).set_up(TOOLS / "crds")
        yield plane


@pytest.fixture
def server_store(control_plane: ControlPlane | None) -> ServerStore | None:
    """Empty at the start of a test."""
    if control_plane is None:
        return None
    store = ServerStore(control_plane)
    store.clear()
    return store


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
