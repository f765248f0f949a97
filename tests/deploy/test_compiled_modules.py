"""What was compiled runs where it is asked for, and decides to the byte what Python does."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from deploy.compilation import module_compiler
from deploy.compilation.compiled_finder import CompiledFinder
from deploy.compilation.compiled_modules import compiled_folder, compiled_sources, package_sources, sources_folder
from deploy.errors import NotCompiled

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
ROOT = Path(__file__).parents[2]
RECORD = """
from deploy.compilation.compiled_finder import prefer_compiled_modules

prefer_compiled_modules()

import hashlib, json
from pdmux_actor.scheduling import scheduler
from pdmux_actor.scheduling.policies.registry import POLICIES
from test_run_ahead import CASES, run

found = {}
for case in CASES:
    for policy in sorted(POLICIES):
        done = run(case, policy, run_ahead=True)
        text = repr((done.logs, done.outcomes, done.loads, done.events, done.steps))
        found[f"{policy}, {case}"] = [done.steps, hashlib.sha256(text.encode()).hexdigest()]
print(json.dumps({"file": scheduler.__file__, "found": found}))
"""


def recorded(environment: dict[str, str]) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", RECORD],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests/deploy'}", **environment},
        stdout=subprocess.PIPE,
        text=True,
        timeout=1200,
        check=True,
    )
    return json.loads(done.stdout)


def test_compiled__any_policy__decides_to_the_byte_what_python_does():
    try:
        module_compiler.compile_modules()
    except NotCompiled as error:
        if "failed" in error.reason:
            raise
        pytest.skip(str(error))

    compiled, python = recorded({"MUXFLEET_COMPILED": "1"}), recorded({"MUXFLEET_COMPILED": "0"})

    assert compiled["file"].endswith(SUFFIX)
    assert python["file"].endswith(".py")
    assert compiled["found"] == python["found"]
    assert min(steps for steps, _ in python["found"].values()) > 20


def test_compiled_sources__any__are_modules_of_ours_and_stand_once():
    sources = compiled_sources()

    assert len(set(sources)) == len(sources) > 50
    assert set(sources) < set(package_sources())


def test_compiled_folder__another_source__is_another_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = compiled_folder()
    changed = sources_folder() / package_sources()[-1]
    read_bytes = Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: read_bytes(path) + b"#" if path == changed else read_bytes(path)
    )

    assert before.parent == tmp_path / "muxfleet" / "compiled"
    assert compiled_folder() != before


def test_finder__folder_of_libraries__finds_those_and_no_other(tmp_path):
    library = tmp_path / "pdmux_actor/scheduling" / f"queues{SUFFIX}"
    library.parent.mkdir(parents=True)
    library.touch()
    finder = CompiledFinder(tmp_path)

    spec = finder.find_spec("pdmux_actor.scheduling.queues", None)

    assert spec is not None
    assert spec.origin == str(library)
    assert finder.find_spec("pdmux_actor.scheduling.scheduler", None) is None
    assert finder.find_spec("queues", None) is None


def test_asked_for__nothing_is_compiled__runs_as_python_and_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "muxfleet.command_line", "schema"],
        cwd=ROOT,
        env={**os.environ, "MUXFLEET_COMPILED": "1", "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    assert "muxfleet compile" in done.stderr
    assert json.loads(done.stdout)


def test_compile__no_compiler__says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(NotCompiled, match="no C compiler"):
        module_compiler.compile_modules()
    assert not (tmp_path / "muxfleet").exists()
