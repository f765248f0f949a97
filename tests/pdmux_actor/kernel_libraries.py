"""Libraries of compiled kernels for this CPU, and for one with AVX2 only."""

import ctypes
from dataclasses import replace

import pytest

from pdmux_actor.models.compiled.library import AVX2, BFLOAT16_KERNELS, KernelSources, cached_folder, compiled_library

# A CPU with wider vectors runs what one with AVX2 does, too.
VARIANTS = ["own"] if BFLOAT16_KERNELS.flags_here() in (None, AVX2) else ["own", "AVX2"]


def library_for(instructions: str, sources: KernelSources) -> ctypes.CDLL:
    """Compiles what this CPU runs, or what one with AVX2 only would. Skips what cannot be had."""
    if instructions == "AVX2":
        sources = replace(sources, flags_here=lambda: AVX2)
    if (made := compiled_library(cached_folder(), sources)) is None:
        pytest.skip("no compiler here, or a CPU that the kernels are not for")
    return made
