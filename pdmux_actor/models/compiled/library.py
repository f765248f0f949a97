"""Compiles the kernels of a CPU at first use, where a compiler is, and keeps the library for later processes.

A wheel stays pure Python. No compiler, or a CPU that the kernels are not for: the models run by torch's own operators.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

_LOG = logging.getLogger(__name__)

_COMPILERS = ("g++", "c++", "clang++")
_HEADERS = ("avx512_by_avx2.h", "bfloat16_lanes.h")
_FLAGS = (
    *("-O3", "-std=c++17", "-fPIC", "-shared", "-fopenmp"),
    # Without contraction a value is rounded alike whatever number of tokens and whatever library it is compiled for.
    "-ffp-contract=off",
)
# Named, not -march=native: a library then runs on every machine with those instructions, also from a shared home.
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma")
AVX2 = ("-mavx2", "-mfma")
_COMPILE_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSources:
    """Says what one library is compiled of, and which models it serves. `flags_here`, beside the common ones, name the
    instructions; None: on this CPU others are faster, or it lacks what the kernels need.
    """

    files: tuple[str, ...]
    flags_here: Callable[[], tuple[str, ...] | None]
    serves: str


def cached_folder() -> Path:
    """Returns where libraries are kept: in the home folder, or with the temporary files of a user who has none."""
    try:
        home = Path.home()
    except RuntimeError:
        home = Path(tempfile.gettempdir())
    return home / ".cache" / "muxfleet" / "kernels"


def compiled_library(folder: Path, sources: KernelSources) -> ctypes.CDLL | None:
    """Loads the kernels from `folder`, or compiles them into it now (some seconds); None where they cannot be had."""
    if (instructions := sources.flags_here()) is None:
        return None
    slower = f"{sources.serves} models run by torch's operators, slower"
    try:
        return ctypes.CDLL(str(_compiled(folder, sources.files, instructions)))
    except _NoCompilerError:
        _LOG.info("no C++ compiler (%s): %s", ", ".join(_COMPILERS), slower)
    except (OSError, subprocess.SubprocessError) as error:
        _LOG.warning("the CPU kernels cannot be compiled: %s: %s", slower, error)
    return None


class _NoCompilerError(Exception):
    pass


def multiply_best() -> bool:
    """Returns whether the kernels' products are the fastest ones here. They widen bfloat16 and multiply in float32,
    which pays on Intel's CPUs without a matrix unit, and wherever there is AVX2 only: torch multiplies bfloat16 an
    eighth as fast as float32 there. Others multiply bfloat16 at a higher rate (panel_linear.py).
    """
    return _widest() == AVX2 or (_is_intel() and not torch.cpu._is_amx_tile_supported())


def _int8_flags() -> tuple[str, ...] | None:
    return _widest_with("-mavx512vnni", suits=torch.cpu._is_vnni_supported())


def _panel_flags() -> tuple[str, ...] | None:
    """For Intel's CPUs with AVX-512 see `multiply_best`."""
    multiplies = torch.cpu._is_avx512_bf16_supported() and torch.cpu._is_vnni_supported()
    return _widest_with("-mavx512bf16", "-mavx512vnni", suits=multiplies and not _is_intel())


def _widest_with(*flags: str, suits: bool) -> tuple[str, ...] | None:
    """Beside AVX-512 the kernels need what `flags` name. A CPU with a matrix unit multiplies faster by oneDNN."""
    if (widest := _widest()) != AVX512:
        return widest
    return (*AVX512, *flags) if suits and not torch.cpu._is_amx_tile_supported() else None


def _widest() -> tuple[str, ...] | None:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return None
    return {"AVX512": AVX512, "AVX2": AVX2}.get(torch.backends.cpu.get_cpu_capability())


def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(errors="replace")[:4096]
    except OSError:
        return False


BFLOAT16_KERNELS = KernelSources(
    files=("products.cpp", "mxfp4_products.cpp", "decode_attention.cpp", "layer_parts.cpp"),
    flags_here=_widest,
    serves="bfloat16",
)
PANEL_KERNELS = KernelSources(
    files=(
        *("bfloat16_panels.cpp", "int8_products.cpp"),
        *("prompt_attention.cpp", "decode_attention.cpp", "layer_parts.cpp", "decode_layers.cpp"),
    ),
    flags_here=_panel_flags,
    serves="bfloat16",
)
INT8_KERNELS = KernelSources(
    files=("int8_products.cpp",),
    flags_here=_int8_flags,
    serves="int8",
)


def _compiled(folder: Path, files: Sequence[str], instructions: Sequence[str]) -> Path:
    here, flags = Path(__file__).parent, (*_FLAGS, *instructions)
    known = hashlib.sha256(" ".join(flags).encode())
    for name in (*files, *_HEADERS):
        known.update((here / name).read_bytes())
    library = folder / f"{known.hexdigest()[:16]}.so"
    if library.exists():
        return library
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise _NoCompilerError
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as unfinished:
        target = Path(unfinished) / library.name
        subprocess.run(
            [compiler, *flags, "-o", str(target), *(str(here / name) for name in files)],
            check=True,
            capture_output=True,
            text=True,
            timeout=_COMPILE_TIMEOUT_S,
        )
        os.replace(target, library)  # another process may have made it meanwhile: it is the same
    _LOG.info("CPU kernels compiled by %s into %s", compiler, library)
    return library
