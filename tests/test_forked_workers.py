import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
CONFTEST = """
from forked_workers import fork_workers

def pytest_xdist_setupnodes(config, specs):
    fork_workers(config.pluginmanager.get_plugin("session"), specs)
"""
FILE = """
import os
import pytest

IMPORTED_BY = os.getpid()

def test_names_processes():
    print("PROCESSES", IMPORTED_BY, os.getpid(), __import__("__main__").__dict__.get("__file__"))
"""
SKIPPED = "import pytest\npytest.skip(allow_module_level=True)\n"
CRASH = (
    FILE
    + """
def test_crash():
    if os.environ["PYTEST_XDIST_WORKER"] in ("gw0", "gw1"):
        os._exit(3)

def test_after_crash():  # without another one xdist waits for ever
    pass
"""
)


def test_forked_workers__one_crashes__another_fork_of_what_imported_the_tests_goes_on(tmp_path: Path) -> None:
    files = {"conftest.py": CONFTEST, "test_a.py": FILE, "test_b.py": FILE, "test_c.py": CRASH, "test_0.py": SKIPPED}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    environment = {
        **os.environ,
        "PYTHONPATH": str(TESTS),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "TMPDIR": str(tmp_path),
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "xdist",
        "-p",
        "pytest_instafail",
        "--instafail",
        "-n",
        "2",
        "--dist",
        "loadfile",
        "-rA",
        tmp_path,
    ]
    told = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout.splitlines()
    lines = [line.split()[1:] for line in told if line.startswith("PROCESSES")]
    importers, workers, mains = zip(*lines, strict=True)

    assert "1 failed, 5 passed, 1 skipped" in told[-1], told
    assert len(set(importers)) == 1
    assert len(set(workers)) >= 2
    assert not set(importers) & set(workers)
    assert set(mains) == {"None"}
    assert not list(tmp_path.glob("muxfleet-workers-*"))
