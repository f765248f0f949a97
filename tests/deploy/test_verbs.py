import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from deploy.cli import build_app
from deploy.commands.verbs import SUMMARIES

# What takes seconds to import; the help of the whole program needs none of it.
SLOW_TO_IMPORT = ("ray", "torch", "transformers", "scipy", "numpy", "pandas", "pydantic", "httpx", "rich", "fastapi")
PROGRAM = typer.main.get_command(build_app())


def muxfleet(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "muxfleet.command_line", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("verb", SUMMARIES)
def test_summary__any_verb__is_the_first_sentence_of_its_help(verb: str) -> None:
    text = " ".join(str(PROGRAM.commands[verb].help).split())  # type: ignore[attr-defined]

    assert re.split(r"(?<=\.) ", text, maxsplit=1)[0] == SUMMARIES[verb]


def test_verbs__modules_in_the_folder__are_all_listed() -> None:
    folder = Path(__file__).parents[2] / "deploy" / "commands"
    defined = {
        path.stem.replace("_", "-")
        for path in folder.glob("*.py")
        if re.match(r'"""muxfleet [a-z][a-z-]*"""', path.read_text())
    }

    assert defined <= set(SUMMARIES)


def test_help__whole_program__imports_nothing_slow() -> None:
    program = (
        "import sys\nfrom deploy.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)

    assert not set(SLOW_TO_IMPORT) & set(run.stderr.split())
    assert all(f"\n  {verb} " in run.stdout for verb in SUMMARIES)


INTERRUPTED_AS_IT_STARTS = """
import os, signal, sys

class AtTyper:
    def find_spec(self, name, path, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, AtTyper())
from muxfleet.command_line import main
main()
"""


def test_command__ctrl_c_while_it_is_imported__ends_without_a_traceback() -> None:
    run = subprocess.run([sys.executable, "-c", INTERRUPTED_AS_IT_STARTS], capture_output=True, text=True, timeout=120)

    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")


CRASHES_AS_PYTHON_ENDS = """
import atexit, os, sys, threading, time, types

class Crash:
    def __del__(self, leave=os._exit):
        leave(77)

def work():
    time.sleep(0.5)
    print("worked")

def run():
    sys.modules["ray"] = types.ModuleType("ray")
    threading.Thread(target=work).start()
    atexit.register(print, "tidied up")
    sys.exit(1)

import deploy.cli
deploy.cli.main = run
from muxfleet.command_line import main
crash = Crash()
main()
"""


def test_command__with_ray__ends_with_its_own_code_and_not_with_a_crash_of_what_ray_leaves() -> None:
    run = subprocess.run([sys.executable, "-c", CRASHES_AS_PYTHON_ENDS], capture_output=True, text=True, timeout=120)

    assert (run.returncode, run.stdout, run.stderr) == (1, "worked\ntidied up\n", "")


def test_unknown_verb__near_to_one__is_suggested() -> None:
    run = muxfleet("stauts")

    assert run.returncode == 2
    assert "status" in run.stderr


def test_completion__beginning_of_a_verb__is_completed() -> None:
    words = {"COMP_WORDS": "muxfleet st", "COMP_CWORD": "1", "_MUXFLEET_COMPLETE": "complete_bash"}

    assert muxfleet(**words).stdout.split() == ["status"]


@pytest.fixture
def hub_cache(tmp_path: Path) -> Path:
    """Hugging Face's cache with one model in it."""
    model = tmp_path / "hub" / "models--org--tiny"
    snapshot = model / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}" + " " * 1_999_998)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("0" * 40)
    return tmp_path


@pytest.mark.parametrize("asked", ["org/tiny", "fleet.yaml"])
def test_pull__what_the_cache_holds__is_named_with_its_size(hub_cache: Path, asked: str) -> None:
    (hub_cache / "fleet.yaml").write_text("models: [{id: a, source: org/tiny}, {id: b, source: org/tiny}]")
    model = str(hub_cache / asked) if asked.endswith(".yaml") else asked

    run = muxfleet("pull", model, HF_HOME=str(hub_cache), HF_HUB_OFFLINE="1")

    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == f"org/tiny: 2.0 MB in {hub_cache}/hub/models--org--tiny/snapshots/{'0' * 40}\n"


def test_pull__not_to_be_had__is_one_line(hub_cache: Path) -> None:
    run = muxfleet("pull", "org/other", HF_HOME=str(hub_cache), HF_HUB_OFFLINE="1")

    assert run.returncode == 1
    assert run.stderr.startswith("muxfleet: ")
    assert "org/other" in run.stderr


@pytest.mark.parametrize("model", ["x" * 300, "x" * 300 + ".gguf", "~nobody-here/model"])
def test_pull__names_no_folder_that_could_be__is_one_line(hub_cache: Path, model: str) -> None:
    run = muxfleet("pull", model, HF_HOME=str(hub_cache), HF_HUB_OFFLINE="1")

    assert run.returncode == 1
    assert run.stderr.startswith("muxfleet: ")
    assert run.stderr.count("\n") == 1


def test_pull__nothing__is_refused(hub_cache: Path) -> None:
    run = muxfleet("pull", "", HF_HOME=str(hub_cache), HF_HUB_OFFLINE="1")

    assert run.returncode == 2
    assert (run.stdout, run.stderr) == ("", "muxfleet: MODEL '': name a Hugging Face id, or a fleet file\n")


def test_pull__revision_beside_a_fleet_file__is_refused(hub_cache: Path) -> None:
    run = muxfleet("pull", str(hub_cache / "fleet.yaml"), "--revision", "v1")

    assert run.returncode == 2
    assert "--revision v1" in run.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output__disk_is_full__is_one_line_and_code_1(unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "muxfleet.command_line", "schema"],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )

    assert run.returncode == 1
    assert run.stderr == (
        "muxfleet: its output cannot be written: No space left on device; make room there, or write it elsewhere\n"
    )
