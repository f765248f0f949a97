from collections.abc import Mapping
from pathlib import Path

import pytest

from pdmux_actor.models.random_checkpoint import DEMO_SHAPES, write_random_checkpoint


@pytest.fixture(scope="session")
def demo_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The demo's three checkpoints, written once per session: name -> folder."""
    root = tmp_path_factory.mktemp("demo-checkpoints")
    folders = {name: root / name for name in DEMO_SHAPES}
    for seed, (name, folder) in enumerate(folders.items()):
        write_random_checkpoint(folder, DEMO_SHAPES[name], seed)
    return folders
