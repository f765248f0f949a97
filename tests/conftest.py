from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import settings

from pdmux_actor.models.random_checkpoint import DEMO_SHAPES, write_random_checkpoint

# A loaded machine must not fail a property; a test that hangs is pytest-timeout's to end.
settings.register_profile("muxfleet", deadline=None)
settings.load_profile("muxfleet")

# They hold no doctests, and pytest, which looks for some, would import all of them under one name.
collect_ignore_glob = ["*conftest.py"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """tests/k8s needs packages and tools that only `make test-k8s` installs."""
    is_asked_for = "k8s" in (config.getoption("markexpr") or "")
    return True if collection_path.name == "k8s" and not is_asked_for else None


@pytest.fixture(scope="session")
def demo_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The demo's three checkpoints, written once per session: name -> folder."""
    root = tmp_path_factory.mktemp("demo-checkpoints")
    folders = {name: root / name for name in DEMO_SHAPES}
    for seed, (name, folder) in enumerate(folders.items()):
        write_random_checkpoint(folder, DEMO_SHAPES[name], seed)
    return folders
