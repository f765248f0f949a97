"""Benchmarks are run by hand: what only running them would show is looked for in their sources."""

import ast
import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
# Where a benchmark's imports are looked for, in this order.
SEARCHED = (BENCHMARKS, ROOT, ROOT / "tests" / "e2e", ROOT / "tests" / "chaos", ROOT / "tests")
NEED_A_GPU = frozenset({"cuda", "sglang", "triton"})  # packages that are not installed everywhere
# A room imports from those before it alone; scripts, and gpu/, from all.
ROOMS = ("report", "load", "engines", "fleets", "search", "planning", "accuracy", "peer_systems")
SOURCES = sorted(BENCHMARKS.rglob("*.py"))


def name_of(file: Path) -> str:
    return file.relative_to(BENCHMARKS).as_posix()


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def is_script(file: Path) -> bool:
    return 'if __name__ == "__main__":' in file.read_text(encoding="utf-8")


def source_of(module: str) -> Path | None:
    """None for a package of others."""
    parts = module.split(".")
    for folder in SEARCHED:
        if (file := folder.joinpath(*parts).with_suffix(".py")).is_file():
            return file
        if (folder.joinpath(*parts)).is_dir():
            return folder.joinpath(*parts)
    is_ours = any((f / parts[0]).is_dir() or (f / f"{parts[0]}.py").is_file() for f in SEARCHED)
    of_others = not is_ours and (parts[0] in NEED_A_GPU or find_spec(parts[0]) is not None)
    return None if of_others else BENCHMARKS / "missing"


def imports_of(file: Path) -> Iterator[ast.ImportFrom]:
    return (n for n in ast.walk(tree_of(file)) if isinstance(n, ast.ImportFrom) and n.module)


def names_in(source: Path) -> set[str]:
    """What can be imported from a module or folder."""
    if source.is_dir():
        return {p.stem for p in source.iterdir() if p.is_dir() or p.suffix == ".py"}
    found: set[str] = set()
    for node in ast.walk(tree_of(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found |= {a.asname or a.name for a in node.names}
    return found


def rows_of_readme() -> list[list[str]]:
    """Cells: question, command, time, results."""
    text = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    return [[c.strip() for c in row.split("|")[1:-1]] for row in re.findall(r"^\|.*`python .*\|$", text, re.MULTILINE)]


def script_of(row: list[str]) -> str:
    return re.findall(r"`python benchmarks/(\S+\.py)", row[1])[0]


def test_readme__every_script__has_a_row_and_every_row_a_script() -> None:
    assert {script_of(row) for row in rows_of_readme()} == {name_of(f) for f in SOURCES if is_script(f)}


def test_readme__results_it_names__exist_and_every_file_of_results_is_named() -> None:
    named = {name for row in rows_of_readme() for name in re.findall(r"`([\w.-]+\.json)`", row[3])}
    kept = {file.name for file in (BENCHMARKS / "results").iterdir()}
    assert named == {name for name in kept if not name.startswith("papers-")}


@pytest.mark.parametrize("row", rows_of_readme(), ids=lambda row: script_of(row))
def test_readme__options_of_a_command__are_known_to_its_script(row: list[str]) -> None:
    file = BENCHMARKS / script_of(row)
    sources = [file, *(s for n in imports_of(file) if (s := source_of(n.module or "")) is not None and s.is_file())]
    sources += [s for f in sources for n in imports_of(f) if (s := source_of(n.module or "")) and s.is_file()]
    known = "\n".join(source.read_text(encoding="utf-8") for source in sources)
    assert [o for o in re.findall(r"--[a-z-]+", row[1]) if f'"{o}"' not in known] == []


@pytest.mark.parametrize("file", SOURCES, ids=name_of)
def test_imports__of_our_modules__name_what_is_there(file: Path) -> None:
    missing = []
    for node in imports_of(file):
        source = source_of(node.module or "")
        if source is not None:
            there = names_in(source) if source.exists() else set()
            missing += [f"line {node.lineno}: {node.module}.{a.name}" for a in node.names if a.name not in there]
    assert not missing


@pytest.mark.parametrize("file", [f for f in SOURCES if f.parent.name in ROOMS], ids=name_of)
def test_imports__of_a_room__come_from_rooms_before_it(file: Path) -> None:
    before = ROOMS[: ROOMS.index(file.parent.name) + 1]
    local = {(n.module or "").split(".")[0] for n in imports_of(file)} & {p.stem for p in BENCHMARKS.iterdir()}
    assert local <= set(before)


@pytest.mark.parametrize(("name", "exists"), [("make_parser", True), ("make_parsers", False)])
def test_names_in__module__are_those_that_can_be_imported(name: str, exists: bool) -> None:
    assert (name in names_in(BENCHMARKS / "report" / "command.py")) is exists


@pytest.mark.parametrize("file", SOURCES, ids=name_of)
def test_benchmark__folder_that_it_finds_from_its_own_place__is_the_trees_or_the_shared_one(file):
    found = re.findall(
        r'Path\(__file__\)(?:\.resolve\(\))?\.parents\[(\d)\] / "(\w+)"', file.read_text(encoding="utf-8")
    )

    for level, folder in found:
        base = file.parents[int(level)]
        assert base == (ROOT.parent if folder == "shared" else ROOT), (
            f"parents[{level}] / {folder!r} is {base / folder}"
        )


def methods_by_class(file: Path) -> dict[str, set[str]]:
    classes = [n for n in ast.walk(tree_of(file)) if isinstance(n, ast.ClassDef)]
    return {c.name: {f.name for f in c.body if isinstance(f, ast.FunctionDef)} for c in classes}


def test_benchmark__class_that_tells_gateways_of_a_simulated_fleet__answers_all_that_a_run_asks() -> None:
    asked = methods_by_class(ROOT / "deploy" / "simulation" / "view_updates.py")["ViewUpdates"]
    telling = [
        (f"{name_of(file)}: {name}", methods)
        for file in SOURCES
        for name, methods in methods_by_class(file).items()
        if {"view", "longest_tokens"} <= methods
    ]

    assert telling
    assert not [name for name, methods in telling if not asked <= methods]


def test_gateway_cpu__its_clients_end_amid_a_round__there_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gateway_cpu

    pipe = subprocess.PIPE
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=pipe, stdout=pipe, text=True) as clients,
        pytest.raises(SystemExit, match="before all was answered"),
    ):
        asyncio.run(gateway_cpu._round(clients, 96, None, is_counted=True))
