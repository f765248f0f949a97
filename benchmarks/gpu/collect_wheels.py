"""Collects wheels for a machine without a network, which has torch's stack but not all else that is needed there.

    python benchmarks/gpu/collect_wheels.py [--into .whl] [--python 3.12] [--fleet | PACKAGE ...]

Without PACKAGE: what images with torch often lack, and what that needs itself. Versions are those of constraints.txt.
There: `pip install --no-index --no-deps --target /tmp/site .whl/*.whl && export PYTHONPATH=$PWD:/tmp/site`.
`--fleet`: all that muxfleet needs beside torch's stack (torch, transformers, pandas and theirs), Ray among it, as one
archive. There: `tar -xJf .whl/site.tar.xz -C /tmp && export PYTHONPATH=$PWD:/tmp/site`.
`python benchmarks/gpu/preflight.py` there says what is missing.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu.fleet_site import needed_packages, pack_site, plain_name

_ROOT = Path(__file__).resolve().parents[2]
USUALLY_MISSING = (
    *("msgspec", "rich", "markdown-it-py", "mdurl", "pygments"),
    *("pytest", "pluggy", "iniconfig", "packaging", "hypothesis", "sortedcontainers"),
)
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def pins(constraints: str) -> dict[str, str]:
    """Requirement by package.

    >>> pins("# pinned\\nmsgspec==0.22.0\\nPyYAML==6.0.3\\n")
    {'msgspec': 'msgspec==0.22.0', 'pyyaml': 'PyYAML==6.0.3'}
    """
    pinned = [line.strip() for line in constraints.splitlines() if "==" in line and not line.startswith("#")]
    return {plain_name(line.partition("==")[0]): line for line in pinned}


def of_machine(python: str) -> list[str]:
    """Options by which pip takes wheels for a machine that is not this one."""
    platforms = [option for name in _PLATFORMS for option in ("--platform", name)]
    return ["--no-deps", "--only-binary=:all:", "--python-version", python, "--implementation", "cp", *platforms]


def download_command(packages: Sequence[str], into: Path, python: str, pinned: dict[str, str]) -> list[str]:
    """Raises SystemExit: a package has no pin."""
    unknown = [package for package in packages if plain_name(package) not in pinned]
    if unknown:
        sys.exit(f"constraints.txt has no version of {', '.join(unknown)}: name another package, or pin it there")
    requirements = [pinned[plain_name(package)] for package in packages]
    return [sys.executable, "-m", "pip", "download", *of_machine(python), "-d", str(into), *requirements]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", nargs="*", default=USUALLY_MISSING)
    parser.add_argument("--into", type=Path, default=Path(".whl"), help="folder (default: %(default)s)")
    parser.add_argument("--python", default="3.12", help="version there (default: %(default)s)")
    parser.add_argument("--fleet", action="store_true", help="what muxfleet needs, in one archive")
    options = parser.parse_args()
    pinned = pins((_ROOT / "constraints.txt").read_text(encoding="utf-8"))
    packages = needed_packages("muxfleet", options.python) if options.fleet else options.package
    into = options.into / "fleet" if options.fleet else options.into
    subprocess.run(download_command(packages, into, options.python, pinned), check=True)
    wheels = sorted(into.glob("*.whl"))
    if options.fleet:
        archive = options.into / "site.tar.xz"
        pack_site(wheels, options.into / "site", archive, of_machine(options.python))
        print(f"{len(wheels)} packages, {archive.stat().st_size / 1e6:.1f} MB in {archive}")
        return
    print(f"{len(wheels)} wheels, {sum(wheel.stat().st_size for wheel in wheels) / 1e6:.1f} MB in {options.into}")


if __name__ == "__main__":
    main()
