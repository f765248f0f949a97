import sys
from pathlib import Path

import pytest

from pdmux_actor.models.compiled.library import cached_folder
from pdmux_actor.models.compiled.panel_kernels import PanelKernels

sys.path.insert(0, str(Path(__file__).parent))  # engine_rig


@pytest.fixture(scope="session")
def panel_kernels() -> PanelKernels:
    made = PanelKernels.compiled_into(cached_folder())
    if made is None:
        pytest.skip("no compiler here, or a CPU that the kernels are not for")
    return made
