"""What this machine lacks for the GPU benchmarks and tests, in a second: nothing is imported but Python's own library.

    python benchmarks/gpu/preflight.py

Prints a line for each thing that is looked for, with the remedy where it is missing, and at the end whether the
machine is ready. Exit code 1 if something that is needed is missing.
"""

import ctypes
import importlib.util
import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_LEAST_DRIVER = 12040  # CUDA 12.4, release 550: the first with green contexts
_LEAST_DISK_BYTES = 2 << 30  # Triton's cache, results


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """A package by the name that is imported. `least` is its least version; `why` says what runs without it otherwise,
    empty where nothing does.
    """

    module: str
    package: str
    least: str = ""
    why: str = ""


PACKAGES = (
    Needed(module="torch", package="torch", least="2.11"),
    Needed(module="triton", package="triton", least="3.6"),
    Needed(module="numpy", package="numpy", least="1.26"),
    Needed(module="msgspec", package="msgspec", least="0.19"),
    Needed(module="psutil", package="psutil"),
    Needed(module="rich", package="rich"),
    Needed(module="safetensors", package="safetensors"),
    Needed(module="huggingface_hub", package="huggingface-hub"),
    Needed(module="tokenizers", package="tokenizers"),
    Needed(module="tqdm", package="tqdm"),
    Needed(module="yaml", package="pyyaml"),
    Needed(module="pytest", package="pytest", least="8.3"),
    Needed(module="cuda.bindings", package="cuda-bindings", least="12.9", why="all but SM partitions"),
    Needed(module="hypothesis", package="hypothesis", why="the GPU tests and benchmarks, no other tests"),
    Needed(module="matplotlib", package="matplotlib", why="all but --plot"),
    Needed(module="pyarrow", package="pyarrow", why="all but the profile's parquet file"),
    Needed(module="pandas", package="pandas", why="all but the profile's parquet file"),
    Needed(module="ray", package="ray", least="2.60", why="all but fleet.py"),
)
_CHECKPOINT_BYTES = 19 << 30  # of fleet.py's two models


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    what: str
    found: str  # empty: missing
    remedy: str = ""
    is_needed: bool = True

    @property
    def is_fatal(self) -> bool:
        return self.is_needed and not self.found


def findings(load_library: Callable[[str], Any] = ctypes.CDLL) -> Iterator[Finding]:
    """`load_library` opens a shared library, or raises OSError."""
    python = platform.python_version()
    yield Finding(what="Python", found=python if sys.version_info >= (3, 11) else "", remedy="install Python 3.11")
    yield from (_package(needed) for needed in PACKAGES)
    yield from _driver(load_library)
    yield from _compiler()
    free_bytes = shutil.disk_usage(Path.home()).free
    yield Finding(
        what="disk of the home folder",
        found=f"{free_bytes / (1 << 30):.0f} GiB free" if free_bytes > _LEAST_DISK_BYTES else "",
        remedy="free 2 GiB, or point TRITON_CACHE_DIR elsewhere",
    )
    yield from _for_a_fleet()
    is_root = str(_ROOT) in [str(Path(entry or ".").resolve()) for entry in sys.path]
    yield Finding(
        what="the repository's root on PYTHONPATH",
        found=str(_ROOT) if is_root else "",
        remedy=f"export PYTHONPATH={_ROOT}:$PYTHONPATH",
    )


def _for_a_fleet() -> Iterator[Finding]:
    """What `fleet.py` alone needs, beside Ray."""
    try:
        found = version("muxfleet")
    except PackageNotFoundError:
        found = ""
    remedy = "carry what collect_wheels.py --fleet packs, which says its version (without it runs: all but fleet.py)"
    yield Finding(what="muxfleet's version", found=found, remedy=remedy, is_needed=False)
    folder = Path("/dev/shm")
    free_bytes = shutil.disk_usage(folder).free if folder.exists() else 0
    yield Finding(
        what="memory for checkpoints",
        found=f"{free_bytes / (1 << 30):.0f} GiB free in {folder}" if free_bytes > _CHECKPOINT_BYTES else "",
        remedy=f"{_CHECKPOINT_BYTES >> 30} GiB of {folder}, or fleet.py --folder elsewhere",
        is_needed=False,
    )


def _package(needed: Needed) -> Finding:
    found = _version(needed)
    is_old = bool(found and needed.least and _numbers(found) < _numbers(needed.least))
    remedy = f"carry its wheel: python benchmarks/gpu/collect_wheels.py {needed.package}"
    is_for_cpus = found.endswith("+cpu")
    if is_for_cpus:
        remedy = f"{found} is here, which is built for CPUs: install torch built for CUDA"
    if is_old:
        remedy = f"{found} is here, {needed.least} is needed; {remedy}"
    if needed.why:
        remedy += f" (without it runs: {needed.why})"
    return Finding(
        what=f"{needed.package} {'>=' if needed.least else ''}{needed.least}".strip(),
        found="" if is_old or is_for_cpus else found,
        remedy=remedy,
        is_needed=not needed.why,
    )


def _version(needed: Needed) -> str:
    try:
        is_here = importlib.util.find_spec(needed.module) is not None
    except ModuleNotFoundError:  # of what it lies in
        is_here = False
    if not is_here:
        return ""
    try:
        return version(needed.package)
    except PackageNotFoundError:
        return "of unknown version"


def _numbers(text: str) -> tuple[int, ...]:
    """
    >>> _numbers("2.11.0+cu130") >= _numbers("2.11"), _numbers("2.9.1") >= _numbers("2.11")
    (True, False)
    """
    numbers = re.match(r"[\d.]*", text.partition("+")[0])
    parts = [int(part) for part in (numbers.group() if numbers else "").split(".") if part]
    return tuple(parts) or (sys.maxsize,)


def _driver(load_library: Callable[[str], Any]) -> Iterator[Finding]:
    remedy = "install an NVIDIA driver of release 550 or newer (580 for torch built for CUDA 13)"
    number, count = ctypes.c_int(0), ctypes.c_int(0)
    try:
        library = load_library("libcuda.so.1")
        failed = library.cuInit(0) or library.cuDriverGetVersion(ctypes.byref(number))
        failed = failed or library.cuDeviceGetCount(ctypes.byref(count))
    except OSError as missing:
        yield Finding(what="NVIDIA driver", found="", remedy=f"{missing}; {remedy}")
        return
    cuda = f"for CUDA {number.value // 1000}.{number.value % 1000 // 10}"
    is_new = number.value >= _LEAST_DRIVER
    yield Finding(what="NVIDIA driver", found="" if failed or not is_new else cuda, remedy=f"{cuda}; {remedy}")
    gpus = f"{count.value} to be seen"
    yield Finding(what="GPU", found=gpus if count.value else "", remedy="check nvidia-smi and CUDA_VISIBLE_DEVICES")


def _compiler() -> Iterator[Finding]:
    """With which Triton compiles what launches its kernels."""
    compiler = next(
        (p for name in (os.environ.get("CC", ""), "gcc", "clang") if name and (p := shutil.which(name))), ""
    )
    yield Finding(what="C compiler", found=compiler, remedy="install gcc (Debian: gcc libc6-dev)")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    found = str(header) if header.exists() else ""
    yield Finding(what="Python's headers", found=found, remedy=f"{header} is missing (Debian: python3-dev)")


def main() -> None:
    found = list(findings())
    for finding in found:
        state = finding.found or ("MISSING" if finding.is_needed else "missing, can be done without")
        print(f"{finding.what}: {state}{'' if finding.found else f' - {finding.remedy}'}")
    print(answer(found))
    if any(finding.is_fatal for finding in found):
        sys.exit(1)


def answer(found: Sequence[Finding]) -> str:
    missing = [finding.what for finding in found if finding.is_fatal]
    if not missing:
        return "Ready. Next: python -m benchmarks.gpu.half_hour --minutes 30"
    without = "benchmarks/gpu/host_step.py, host_slice.py and step_gaps.py need no GPU"
    return f"NOT READY, {len(missing)} missing: {', '.join(missing)}. Remedies are above; {without}."


if __name__ == "__main__":
    main()
