"""What the documents and the helps show, as a reader meets it: commands that parse, links that lead somewhere."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from deploy.cli import build_app
from deploy.fleet_file.settings import FleetFile, parse_fleet_file, read_fleet_file

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(p for p in ROOT.rglob("*.md") if not any(part.startswith(".") for part in p.relative_to(ROOT).parts))
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
PROGRAM = typer.main.get_command(build_app())


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


def verbs(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Typer's commands have classes of its own."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name in inner:
        yield from verbs(inner[name], (*path, name))


VERBS = dict(verbs(PROGRAM))


def parse(line: str) -> tuple[tuple[str, ...], Any]:
    """What the words after `muxfleet` mean to the program. Raises as it would."""
    words = shlex.split(re.split(r"\s(?:>|&&|\||&)\s?", line, maxsplit=1)[0], comments=True)
    path = next((p for p in VERBS if tuple(words[1 : 1 + len(p)]) == p), None)
    assert path is not None, f"there is no verb in {line!r}"
    return path, VERBS[path].make_context(" ".join(path), words[1 + len(path) :])


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_help__every_verb__shows_an_example_in_one_line_that_parses(path: tuple[str, ...]) -> None:
    command = VERBS[path]
    text = command.get_help(command.context_class(command, info_name=" ".join(path), terminal_width=80))

    found = re.findall(r"^ *Example: (muxfleet .*)$", text, re.MULTILINE)
    assert found, "no example"
    for example in found:
        assert parse(example)[0] == path


def shown_commands() -> list[tuple[str, str]]:
    """Lines of code blocks."""
    found = []
    for file in DOCUMENTS:
        fenced = False
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.lstrip().startswith("```"):
                fenced = not fenced
            elif fenced and re.match(r"\s*muxfleet ", line):
                found.append((name_of(file), line.strip()))
    return found


@pytest.mark.parametrize(("file", "line"), shown_commands())
def test_document__command_it_shows__parses(file: str, line: str) -> None:
    parse(line.replace("[URL]", "URL"))


@pytest.mark.parametrize("file", DOCUMENTS, ids=name_of)
def test_document__verbs_and_options_in_its_text__are_there(file: Path) -> None:
    unknown = []
    for code in re.findall(r"`muxfleet ([a-z][^`\n]*)`", file.read_text(encoding="utf-8")):
        words = code.split()
        path = next((p for p in VERBS if tuple(words[: len(p)]) == p), (words[0],))
        options = {"--help"} | {o for parameter in getattr(VERBS.get(path), "params", ()) for o in parameter.opts}
        groups = {p[0] for p in VERBS}
        unknown += [code] if words[0] not in groups else [o for o in words if o.startswith("--") and o not in options]
    assert not unknown


def test_documents__scripts_they_name__exist_and_know_the_options() -> None:
    missing = []
    shared = list((ROOT / "benchmarks" / "report").glob("*.py"))  # options that all benchmarks have
    for file in DOCUMENTS:
        text = file.read_text(encoding="utf-8")
        for script, options in re.findall(r"python ((?:benchmarks|scripts)/\S+\.py)([^`\n#]*)", text):
            source = ROOT / script
            if not source.exists():
                missing.append(f"{name_of(file)}: {script}")
                continue
            known = "\n".join(p.read_text(encoding="utf-8") for p in {source, *source.parent.glob("*.py"), *shared})
            missing += [
                f"{name_of(file)}: {script} {o}" for o in re.findall(r"--[a-z-]+", options) if f'"{o}"' not in known
            ]
    assert not missing


def anchors(file: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head)) for head in heads]
    return {head.strip().lower().replace(" ", "-") for head in plain}


@pytest.mark.parametrize("file", DOCUMENTS, ids=name_of)
def test_document__its_links__lead_somewhere(file: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", file.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (file.parent / path).resolve() if path else file
        if not there.exists() or (anchor and anchor not in anchors(there)):
            dead.append(target)
    assert not dead


@pytest.mark.parametrize("file", DOCUMENTS, ids=name_of)
def test_document__files_of_the_project_it_names__exist(file: Path) -> None:
    pattern = (
        r"`((?:traces|profiler|placement|pdmux_actor|router|deploy|helm|benchmarks|examples|docs|tests)/[\w./-]+)`"
    )
    named = re.findall(pattern, file.read_text(encoding="utf-8"))

    assert not [n for n in named if not list(ROOT.glob(n.rstrip("/"))) and not list(ROOT.glob(n + ".py"))]


@pytest.mark.parametrize("file", DOCUMENTS, ids=name_of)
def test_document__installs_the_chart__fetches_what_it_depends_on_first(file: Path) -> None:
    before, install, _ = file.read_text(encoding="utf-8").partition("helm install fleet helm")
    assert not install or "helm dependency update helm" in before


def test_extras__named_in_documents_examples_and_remedies__are_ours() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    files = [*DOCUMENTS, *EXAMPLES, *(ROOT / "deploy").rglob("*.py")]
    named = {
        e
        for f in files
        for group in re.findall(r"muxfleet\[([\w,]+)\]", f.read_text("utf-8"))
        for e in group.split(",")
    }

    assert named
    assert named <= extras


@pytest.mark.parametrize("file", EXAMPLES, ids=name_of)
def test_example__each__is_a_fleet_file(file: Path) -> None:
    read_fleet_file(file)


def shown_fleet_files() -> list[tuple[str, str]]:
    """Blocks of YAML whose keys are those of a fleet file, whole or in parts."""
    found = []
    for file in DOCUMENTS:
        for block in re.findall(r"^```yaml\n(.*?)^```", file.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            keys = yaml.safe_load(block)
            if isinstance(keys, dict) and keys.keys() <= FleetFile.model_fields.keys():
                found.append(
                    (name_of(file), block if "models" in keys else f"{block}models: [{{id: a, source: ./a}}]\n")
                )
    return found


@pytest.mark.parametrize(("file", "text"), shown_fleet_files())
def test_document__fleet_file_it_shows__is_one(file: str, text: str) -> None:
    parse_fleet_file(text, name=file, base=ROOT)


def test_decisions__each__has_a_number_of_its_own_and_is_named_by_the_map() -> None:
    decisions = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    architecture = (ROOT / "ARCHITECTURE.md").read_text()

    assert [int(file.name[:4]) for file in decisions] == list(range(1, len(decisions) + 1))
    for file in decisions:
        assert file.read_text().startswith(f"# {int(file.name[:4])}. "), file.name
        assert f"docs/adr/{file.name}" in architecture, file.name
