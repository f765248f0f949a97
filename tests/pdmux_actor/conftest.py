import sys
from pathlib import Path

import pytest

from pdmux_actor.models.compiled.library import PANEL_KERNELS
from pdmux_actor.models.compiled.panel_kernels import PanelKernels

sys.path.insert(0, str(Path(__file__).parent))  # engine_rig, kernel_libraries

from kernel_libraries import VARIANTS, library_for


@pytest.fixture(scope="session", params=VARIANTS)
def panel_kernels(request: pytest.FixtureRequest) -> PanelKernels:
    return PanelKernels(library_for(request.param, PANEL_KERNELS))
