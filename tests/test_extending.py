"""The walkthroughs of docs/extending.md, done as they are written, in a copy of the tree."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "extending.md"
COPIED = ("muxfleet", "traces", "profiler", "placement", "pdmux_actor", "router", "deploy", "scripts", "tests")
READ = ("examples", "helm", "docs", "pyproject.toml")
DEADLINE_S = 280
PROGRAMS = {
    "pytest": ("-m", "pytest", "-p", "no:cacheprovider"),
    "make": ("-m", "scripts.chart.generate"),
    "muxfleet": ("-m", "muxfleet.command_line"),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what a newcomer changes and runs."""
    for name in (*COPIED, *READ):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / name)
    return tmp_path


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def follow(title: str, tree: Path) -> dict[str, str]:
    """Writes the section's files and runs its commands; what each of them printed."""
    text = section(title)
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        path = tree / block.splitlines()[0].removeprefix("# ")
        assert path.parent.is_dir(), path
        assert not path.exists(), path
        path.write_text(block)
        run(tree, "-m", "ruff", "check", str(path.relative_to(tree)))
    (shell,) = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return {line: command(tree, line) for line in shell.splitlines()}


def command(tree: Path, line: str) -> str:
    program, *arguments = shlex.split(line)
    return run(tree, *PROGRAMS[program], *(arguments if program != "make" else ()))


def run(tree: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tree, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def passed(said: str) -> int:
    found = re.search(r"(\d+) passed", said)
    return 0 if found is None else int(found[1])


def test_policy__as_the_page_shows_it__serves_requests_by_its_name(tree: Path) -> None:
    said = follow("A policy", tree)

    fleet = tree / "examples" / "simulated-8gpu.yaml"
    fleet.write_text(fleet.read_text().replace("policy: mux", "policy: longest_queue"))
    run(tree, *PROGRAMS["muxfleet"], "simulate", str(fleet), "--duration", "10", "--json", "out.json")
    (served,) = json.loads((tree / "out.json").read_text())["deployments"].values()
    schema = json.loads((tree / "examples" / "fleet.schema.json").read_text())

    tests, _, simulate = said
    assert passed(said[tests]) > 3
    assert "longest_queue" in said[simulate]
    assert served["total"]["finished"] == served["total"]["requests"] > 50
    assert "longest_queue" in schema["$defs"]["EngineSection"]["properties"]["policy"]["enum"]
    assert "| `longest_queue` | the model with most" in (tree / "docs" / "policies.md").read_text()
    assert "longest_queue" in (tree / "helm" / "values.schema.json").read_text()


def test_family__as_the_page_shows_it__says_the_tokens_of_transformers(tree: Path) -> None:
    said = follow("A model family", tree)

    tests, _ = said
    assert passed(said[tests]) > 1
    assert "| `MinistralForCausalLM` | Ministral 8B | yes |" in (tree / "docs" / "models.md").read_text()


def test_solver__as_the_page_shows_it__plans_a_fleet_and_is_in_the_help(tree: Path) -> None:
    said = follow("A solver", tree)

    tests, _, plan = said
    assert passed(said[tests]) > 1
    assert "one_each" in run(tree, *PROGRAMS["muxfleet"], "plan", "--help")
    assert "requests/s within SLO" in said[plan]
    assert "| `one_each` | one replica of every model" in (tree / "docs" / "planner.md").read_text()
    assert "one_each" in (tree / "examples" / "fleet.schema.json").read_text()


def test_page__any_reader__is_done_in_five_minutes() -> None:
    """At 200 words a minute, without the code."""
    prose = re.sub(r"^```.*?^```", "", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)

    assert len(prose.split()) < 1000
