from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import settings

from pdmux_actor.models.random_checkpoint import DEMO_SHAPES, write_random_checkpoint

# A loaded machine must not fail a property; a test that hangs is pytest-timeout's to end.
settings.register_profile("muxfleet", deadline=None)
settings.load_profile("muxfleet")


@pytest.fixture(scope="session")
def demo_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The demo's three checkpoints, written once per session: name -> folder."""
    root = tmp_path_factory.mktemp("demo-checkpoints")
    folders = {name: root / name for name in DEMO_SHAPES}
    for seed, (name, folder) in enumerate(folders.items()):
        write_random_checkpoint(folder, DEMO_SHAPES[name], seed)
    return folders
