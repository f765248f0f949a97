import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdmux_actor.executor import lanes
from pdmux_actor.models.compiled.library import PANEL_KERNELS
from pdmux_actor.models.compiled.panel_linear import PanelKernels
from pdmux_actor.models.torch_threads import use_torch_threads

sys.path.insert(0, str(Path(__file__).parent))  # engine_rig, kernel_libraries

from kernel_libraries import VARIANTS, library_for


@pytest.fixture(scope="session", params=VARIANTS)
def panel_kernels(request: pytest.FixtureRequest) -> PanelKernels:
    return PanelKernels(library_for(request.param, PANEL_KERNELS))


@pytest.fixture(scope="session", autouse=True)
def torch_alone() -> None:
    """As in an engine's process, where the cores are the lanes'. What tests compute to compare with is small."""
    use_torch_threads(1)


@pytest.fixture(scope="module", autouse=True)
def lanes_take_turns_with_tests() -> Iterator[None]:
    """Lanes give way to what answers on their cores. Here that would be the tests of another process, which compute:
    at each operation of a team one thread would wait for the end of their turn.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "_let_others_begin_at_once", lambda: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def freed_memory_goes_back() -> Iterator[None]:
    """The C library keeps what each thread of an engine freed, in a heap of its own, when the thread has ended: these
    tests ended with 2 GB a process, three times as much as they hold.
    """
    yield
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if give_back is not None:
        give_back(0)
