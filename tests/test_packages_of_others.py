"""muxfleet beside packages and files of others that bear the names of its own."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import pytest

from muxfleet.own_packages import PACKAGES

ROOT = Path(__file__).parents[1]
_INSTALL_S = 240


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the files that git knows or would add, as pip does it."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "scripts", "muxfleet", *PACKAGES):
        (source / name).symlink_to(ROOT / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    (built,) = folder.glob("muxfleet-*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages: the wheel, and a `traces` of somebody else, as PyPI has one."""
    folder = tmp_path_factory.mktemp("site")
    pip("install", "--no-deps", "--target", folder, wheel)
    write_impostors(folder, ["traces"], "origin = 'PyPI'\n")
    return folder


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
    assert run.returncode == 0, run.stderr


def write_impostors(folder: Path, names: list[str], text: str) -> None:
    for name in names:
        (folder / f"{name}.py").write_text(text)


def python(*arguments: str, cwd: Path, site: Path | None = None) -> str:
    environment: Mapping[str, str] = os.environ if site is None else os.environ | {"PYTHONPATH": str(site)}
    run = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_wheel__its_files__are_below_one_name(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert {name.split("/")[0] for name in names} == {"muxfleet", f"muxfleet-{metadata.version('muxfleet')}.dist-info"}
    packaged = {name for name in names if name.endswith(".py")}
    in_tree = {f"muxfleet/{p.relative_to(ROOT)}" for name in PACKAGES for p in (ROOT / name).rglob("*.py")}
    assert packaged == in_tree | {str(p.relative_to(ROOT)) for p in (ROOT / "muxfleet").glob("*.py")}


@pytest.mark.parametrize(
    ("arguments", "answer"), [(["--version"], "muxfleet "), (["schema"], '"muxfleet fleet file"')], ids=str
)
def test_installed__beside_anothers_traces__runs(site: Path, tmp_path: Path, arguments: list[str], answer: str) -> None:
    write_impostors(tmp_path, list(PACKAGES), "raise RuntimeError('the file of the user')\n")

    # -c and not -m: it puts the user's folder first on the path.
    program = f"import sys; sys.argv[1:] = {arguments}; from muxfleet.command_line import main; main()"
    assert answer in python("-c", program, cwd=tmp_path, site=site)


def test_command__an_old_package_of_the_user_comes_first__says_which_in_one_line(tmp_path: Path) -> None:
    write_impostors(tmp_path, ["pydantic"], "VERSION = '1.10.2'\n")
    run = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[1:] = ['status']; from muxfleet.command_line import main; main()"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert run.returncode == 1
    assert run.stderr.startswith("muxfleet: cannot import name ")
    assert run.stderr.endswith(
        f"({tmp_path}/pydantic.py): muxfleet was not installed with that package; is it on PYTHONPATH?\n"
    )


def test_installed__beside_anothers_traces__each_is_found_by_its_own(site: Path, tmp_path: Path) -> None:
    theirs = "import traces; print(traces.origin)"
    ours = "from muxfleet.own_packages import claim; claim(); import traces.readers.registry as e; print(e.__file__)"

    assert python("-c", theirs, cwd=tmp_path, site=site) == "PyPI\n"
    assert python("-c", ours, cwd=tmp_path, site=site).startswith(str(site / "muxfleet" / "traces"))


def test_claim__another_package_is_imported_already__says_which(site: Path, tmp_path: Path) -> None:
    program = (
        "import traces\nfrom muxfleet.own_packages import claim\n"
        "try:\n    claim()\nexcept ImportError as error:\n    print(error)\n"
    )

    assert python("-c", program, cwd=tmp_path, site=site).startswith(f"'traces' was imported from {site}/traces.py")


def test_serve_applications__imported_in_a_folder_of_impostors__are_ours(tmp_path: Path) -> None:
    """As a Ray worker does it, with the folder of whoever started the cluster first on its path."""
    write_impostors(tmp_path, list(PACKAGES), "raise RuntimeError('the file of the user')\n")
    program = (
        "import muxfleet.unit_replica as s, deploy\nprint(s.UnitDeployment.__mro__[1].__module__, deploy.__file__)"
    )

    assert python("-c", program, cwd=tmp_path) == f"deploy.serve.unit_replica {ROOT}/deploy/__init__.py\n"
