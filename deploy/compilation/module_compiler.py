"""Compiles the modules that simulations spend their time in: once for a version, into the user's cache."""

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.compilation import mypyc_program
from deploy.compilation.compiled_modules import (
    LIBRARY,
    all_compiled,
    compiled_folder,
    compiled_sources,
    package_sources,
    sources_folder,
)
from deploy.compilation.native_structs import compilable
from deploy.errors import NotCompiled

_TIMEOUT_S = 3600.0
_LAST_LINES = 20


def compile_modules() -> Path:
    """Returns the folder of the libraries; what is there already stays. Those of sources that these have replaced go.

    Raises NotCompiled: mypyc or a C compiler is missing, or one of them fails, or there is no place to write to.
    """
    folder = compiled_folder()
    if folder.is_dir():
        return folder
    _check_compilers()
    with _writing():
        _fill(folder)
    return folder


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotCompiled(
            reason=f"{error.filename or all_compiled()} cannot be written: {error.strerror or error}",
            remedy="make room there, or set XDG_CACHE_HOME to a folder of yours",
        ) from error


def _fill(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=all_compiled()) as name:
        work = Path(name)
        _copy_sources(work / "sources")
        _compile(work)
        try:
            (work / "libraries").rename(folder)
        except OSError:  # another process was faster
            if not folder.is_dir():
                raise
    for replaced in set(folder.parent.iterdir()) - {folder}:
        shutil.rmtree(replaced, ignore_errors=True)


def remove_compiled() -> int:
    """Removes what was compiled of any version and installation. Returns its size in bytes. Raises NotCompiled: it
    cannot be removed.
    """
    folder = all_compiled()
    size_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if folder.is_dir():
        with _writing():
            shutil.rmtree(folder)
    return size_bytes


def _check_compilers() -> None:
    if importlib.util.find_spec("mypyc") is None or importlib.util.find_spec("setuptools") is None:
        raise NotCompiled(reason="mypyc is not installed", remedy="pip install 'muxfleet[compiled]'")
    compiler = str(sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise NotCompiled(reason=f"there is no C compiler {compiler}", remedy="install one, for example gcc")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise NotCompiled(reason="Python's headers are missing", remedy="install them, for example python3-dev")


def _copy_sources(folder: Path) -> None:
    """Of all modules, since their types are read. Those to be compiled are rewritten (native_structs.py)."""
    compiled = set(compiled_sources())
    for path in package_sources():
        source = (sources_folder() / path).read_text(encoding="utf-8")
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(compilable(source) if path in compiled else source, encoding="utf-8")


def _compile(work: Path) -> None:
    command = [
        *(sys.executable, str(mypyc_program.__file__), LIBRARY),
        *(str(work), str(work / "libraries")),
        *(str(path) for path in compiled_sources()),
    ]
    try:
        done = subprocess.run(
            command,
            cwd=work / "sources",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NotCompiled(reason=f"it took more than {_TIMEOUT_S:.0f} s", remedy="run without it") from error
    if done.returncode != 0:
        last = "\n".join(done.stdout.splitlines()[-_LAST_LINES:])
        raise NotCompiled(reason=f"mypyc or the C compiler failed:\n{last}", remedy="run without it")
