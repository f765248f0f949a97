"""What was compiled runs where it is asked for, and decides to the byte what Python does."""

import asyncio
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest
from small_experiment import SMALL

from deploy.compilation import module_compiler
from deploy.compilation.compiled_modules import (
    LIBRARY,
    CompiledFinder,
    compiled_folder,
    compiled_sources,
    package_sources,
    prefer_compiled_modules,
    runs_compiled,
    sources_folder,
)
from deploy.errors import NotCompiled
from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.lease import ModelAssignment
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.serving.commands import EngineSettings

COMPARE = """
from deploy.compilation.compiled_modules import prefer_compiled_modules

prefer_compiled_modules()

from deploy.cli import main
from deploy.simulation.workers import Workers
from pdmux_actor.scheduling import scheduler

with Workers(2, print) as workers:
    print(workers.submit(lambda tell: scheduler.__file__).result(), flush=True)
main()
"""
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
ROOT = Path(__file__).parents[2]
RECORD = """
from deploy.compilation.compiled_modules import prefer_compiled_modules

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


pytestmark = pytest.mark.timeout(1200)  # beside other tests the compilers work for minutes


def _skip_without_compilers(step: Callable[[], object]) -> None:
    try:
        step()
    except NotCompiled as error:
        if "failed" in error.reason:
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def _compiled():
    _skip_without_compilers(module_compiler.compile_modules)


@pytest.mark.usefixtures("_compiled")
def test_compiled__any_policy__decides_to_the_byte_what_python_does():
    compiled, python = recorded({"MUXFLEET_COMPILED": "1"}), recorded({"MUXFLEET_COMPILED": "0"})

    assert compiled["file"].endswith(SUFFIX)
    assert python["file"].endswith(".py")
    assert compiled["found"] == python["found"]
    assert min(steps for steps, _ in python["found"].values()) > 20


@pytest.mark.usefixtures("_compiled")
def test_compare__in_processes_of_their_own__runs_what_is_compiled_and_finds_what_python_finds(tmp_path):
    experiment = tmp_path / "small.yaml"
    experiment.write_text(json.dumps(SMALL), encoding="utf-8")

    def compared(compiled: str) -> tuple[str, list[dict[str, object]]]:
        out = tmp_path / f"{compiled}.json"
        done = subprocess.run(
            [sys.executable, "-c", COMPARE, "compare", str(experiment), "--quick", "--jobs=2", f"--json={out}"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "MUXFLEET_COMPILED": compiled},
            stdout=subprocess.PIPE,
            text=True,
            timeout=600,
            check=True,
        )
        rows = [{**row, "wall_s": None} for row in json.loads(out.read_text(encoding="utf-8"))["rows"]]
        return done.stdout.splitlines()[0], rows

    (compiled_file, compiled), (python_file, python) = compared("1"), compared("0")

    assert compiled_file.endswith(SUFFIX)
    assert python_file.endswith(".py")
    assert compiled == python
    assert len(compiled) == 2


async def said_by_engine(checkpoints: Mapping[str, Path], run_by: str | None) -> tuple[bool, dict[str, list[int]]]:
    """Whether the engine's process has loaded what is compiled, and the tokens of requests that it serves together."""
    slo = Slo(ttft_s=5.0, tbt_s=1.0)
    settings = EngineSettings(kind="torch_cpu", kv_pool_bytes=64 * 1024 * 1024, num_cores=2, dtype="float32")
    engine = NativeEngine(settings, run_by=run_by)
    await engine.start()
    try:
        for model, folder in checkpoints.items():
            await engine.add_model(ModelAssignment(model=model, quota_blocks=1000, source=str(folder), slo=slo))
        asked = [(f"{model} {i}", model, i) for model in checkpoints for i in range(3)]
        for request_id, model, i in asked:
            sampling = SamplingParams(max_tokens=6 + i, temperature=0.0, ignore_eos=True, logprobs=1 if i else None)
            prompt = tuple(range(5, 25 + 30 * i))
            engine.submit(
                GenerateRequest(request_id=request_id, model=model, prompt_token_ids=prompt, sampling=sampling, slo=slo)
            )
        said: dict[str, list[int]] = {request_id: [] for request_id, _, _ in asked}
        ended: set[str] = set()
        async with asyncio.timeout(120):
            async for events in engine.events():
                for event in events:
                    assert event.error is None, event.error
                    said[event.request_id] += [token.token_id for token in event.tokens]
                    ended |= {event.request_id} if event.finish is not None else set()
                if len(ended) == len(said):
                    break
        libraries = {Path(loaded.path).name for loaded in psutil.Process(engine.pid).memory_maps()}
        return any(name.startswith(LIBRARY) for name in libraries), said
    finally:
        await engine.stop()


@pytest.mark.usefixtures("_compiled")
async def test_engine_on_cores__run_by_compiled_program__says_what_it_says_as_python(demo_checkpoints, monkeypatch):
    monkeypatch.setenv("MUXFLEET_COMPILED", "1")

    is_compiled, compiled = await said_by_engine(demo_checkpoints, "deploy.compilation.compiled_program")
    is_python, python = await said_by_engine(demo_checkpoints, None)

    assert (is_compiled, is_python) == (True, False)
    assert compiled == python
    assert [len(tokens) for tokens in python.values()] == [6, 7, 8] * len(demo_checkpoints)


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

    assert before.parent.parent == tmp_path / "muxfleet" / "compiled"
    assert compiled_folder() != before
    assert compiled_folder().parent == before.parent, "what replaces it lies beside it"


@pytest.fixture
def quick_compiler(tmp_path, monkeypatch):
    """Instead of minutes of mypyc: one library."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module_compiler, "_check_compilers", lambda: None)

    def compile_one(work: Path) -> None:
        (work / "libraries").mkdir()
        (work / "libraries" / f"one{SUFFIX}").write_bytes(bytes(1000))

    monkeypatch.setattr(module_compiler, "_compile", compile_one)
    return tmp_path / "muxfleet" / "compiled"


def test_compile__sources_have_changed__what_they_replace_goes_and_that_of_others_stays(quick_compiler):
    folder = compiled_folder()
    older, of_others = folder.parent / "older", quick_compiler / "another installation" / "its sources"
    for kept in (older, of_others):
        kept.mkdir(parents=True)

    assert module_compiler.compile_modules() == folder

    assert list(folder.parent.iterdir()) == [folder]
    assert [path.name for path in folder.iterdir()] == [f"one{SUFFIX}"]
    assert set(quick_compiler.iterdir()) == {folder.parent, of_others.parent}, "and no working folder is left"
    assert of_others.is_dir()


def test_clean__something_was_compiled__nothing_is_left_and_it_says_how_much_it_was(quick_compiler, monkeypatch):
    monkeypatch.setattr(module_compiler, "_copy_sources", lambda folder: None)
    module_compiler.compile_modules()

    assert module_compiler.remove_compiled() == 1000
    assert not quick_compiler.exists()
    assert module_compiler.remove_compiled() == 0


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


@pytest.mark.parametrize(
    ("verb", "asked", "is_tried"),
    [("simulate", None, True), ("compare", None, True), ("simulate", "0", False), ("schema", None, False)],
)
def test_not_asked_for__verb__tries_what_was_compiled_where_it_simulates_and_runs_without(
    verb, asked, is_tried, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = compiled_folder()
    folder.mkdir(parents=True)
    (folder / f"{LIBRARY}__mypyc{SUFFIX}").write_bytes(b"of a machine with another C library")
    monkeypatch.delenv("MUXFLEET_COMPILED", raising=False)
    if asked is not None:
        monkeypatch.setenv("MUXFLEET_COMPILED", asked)

    done = subprocess.run(
        [sys.executable, "-m", "muxfleet.command_line", verb, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    assert ("runs as Python" in done.stderr) is is_tried
    assert "Usage" in done.stdout


def test_not_asked_for__cache_of_somebody_else__runs_as_python_without_a_word(tmp_path, monkeypatch):
    monkeypatch.delenv("MUXFLEET_COMPILED", raising=False)
    monkeypatch.setattr("deploy.compilation.compiled_modules.cache_folder", _not_for_us)

    prefer_compiled_modules(by_default=True)

    assert not runs_compiled()


def _not_for_us() -> Path:
    raise PermissionError("somebody else's")


def file_after_simulate(module: str) -> str:
    """Where a module lies in a process that has run `muxfleet simulate --help`."""
    program = "import sys; sys.argv[1:] = ['simulate', '--help']; from muxfleet.command_line import main\n"
    program += "try: main()\nexcept SystemExit: pass\n"
    program += f"import {module}; print(sys.modules['{module}'].__file__)"
    said = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return said.stdout.splitlines()[-1]


@pytest.fixture
def quick_library(tmp_path, monkeypatch) -> Path:
    """Instead of minutes of mypyc: an empty module of C, where what is compiled of these sources lies."""
    _skip_without_compilers(module_compiler._check_compilers)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    name = f"{LIBRARY}__mypyc"
    source, library = tmp_path / "empty.c", compiled_folder() / f"{name}{SUFFIX}"
    library.parent.mkdir(parents=True)
    source.write_text(
        f'#include <Python.h>\nstatic struct PyModuleDef empty = {{PyModuleDef_HEAD_INIT, "{name}"}};\n'
        f"PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&empty); }}\n"
    )
    compiler = str(sysconfig.get_config_var("CC") or "cc").split()
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run([*compiler, "-shared", "-fPIC", include, str(source), "-o", str(library)], check=True)
    return library


def test_simulate__something_is_compiled__runs_it_unasked(quick_library, monkeypatch):
    monkeypatch.delenv("MUXFLEET_COMPILED", raising=False)

    assert file_after_simulate(quick_library.name.removesuffix(SUFFIX)) == str(quick_library)


@pytest.mark.usefixtures("_compiled")
def test_compiled__simulate_is_run__imports_it_unasked(monkeypatch):
    monkeypatch.delenv("MUXFLEET_COMPILED", raising=False)

    assert file_after_simulate("pdmux_actor.scheduling.scheduler").endswith(SUFFIX)


def test_compile__no_compiler__says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(NotCompiled, match="no C compiler"):
        module_compiler.compile_modules()
    assert not (tmp_path / "muxfleet").exists()


@pytest.mark.parametrize("act", [module_compiler.compile_modules, module_compiler.remove_compiled])
def test_compile__cache_cannot_be_written__says_so_with_the_place(
    act: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even root writes nothing below a file, nor where there are no folders by that name."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(module_compiler, "_check_compilers", lambda: None)
    if act is module_compiler.remove_compiled:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        (tmp_path / "muxfleet" / "compiled" / "x").mkdir(parents=True)
        monkeypatch.setattr(module_compiler.shutil, "rmtree", _refuse)

    with pytest.raises(
        NotCompiled, match=rf"{tmp_path}\S* cannot be written: \w.*; make room there, or set XDG_CACHE_HOME"
    ):
        act()


def _refuse(path: Path) -> None:
    raise OSError(30, "Read-only file system", str(path))
