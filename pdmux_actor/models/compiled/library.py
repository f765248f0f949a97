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
from pathlib import Path

import torch

_LOG = logging.getLogger(__name__)

_COMPILERS = ("g++", "c++", "clang++")
_SOURCES = ("products.cpp", "decode_attention.cpp", "layer_parts.cpp")
_HEADERS = ("bfloat16_lanes.h",)
# Named, not -march=native: the library then runs on every machine that passes `_is_suited`, also from a shared home.
_FLAGS = (
    *("-O3", "-std=c++17", "-fPIC", "-shared", "-fopenmp"),
    *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"),
)
_COMPILE_TIMEOUT_S = 120.0


def cached_folder() -> Path:
    """Returns where libraries are kept: in the home folder, or with the temporary files of a user who has none."""
    try:
        home = Path.home()
    except RuntimeError:
        home = Path(tempfile.gettempdir())
    return home / ".cache" / "muxfleet" / "kernels"


def compiled_library(folder: Path) -> ctypes.CDLL | None:
    """Loads the kernels from `folder`, or compiles them into it now (some seconds); None where they cannot be had."""
    if not _is_suited():
        return None
    try:
        return ctypes.CDLL(str(_compiled(folder)))
    except _NoCompilerError:
        _LOG.info("no C++ compiler (%s): bfloat16 models run by torch's operators, slower", ", ".join(_COMPILERS))
    except (OSError, subprocess.SubprocessError) as error:
        _LOG.warning("the CPU kernels cannot be compiled: bfloat16 models run by torch's operators, slower: %s", error)
    return None


class _NoCompilerError(Exception):
    pass


def multiply_best() -> bool:
    """Returns whether the kernels' products are the fastest ones here. They widen bfloat16 and multiply in float32,
    which pays on Intel's CPUs without a matrix unit. Others multiply bfloat16 at a higher rate, and oneDNN does so.
    """
    return _is_intel() and not torch.cpu._is_amx_tile_supported()


def _is_suited() -> bool:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(errors="replace")[:4096]
    except OSError:
        return False


def _compiled(folder: Path) -> Path:
    here = Path(__file__).parent
    known = hashlib.sha256(" ".join(_FLAGS).encode())
    for name in (*_SOURCES, *_HEADERS):
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
        sources = [str(here / name) for name in _SOURCES]
        subprocess.run(
            [compiler, *_FLAGS, "-o", str(target), *sources],
            check=True,
            capture_output=True,
            text=True,
            timeout=_COMPILE_TIMEOUT_S,
        )
        os.replace(target, library)  # another process may have made it meanwhile: it is the same
    _LOG.info("CPU kernels compiled by %s into %s", compiler, library)
    return library
