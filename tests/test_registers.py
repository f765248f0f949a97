"""Every register of names: what it holds is in the schemas, helps, errors and documents, and nobody else lists it."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main
from source_trees import PACKAGES, nodes_of, tree_of

from deploy.cli import build_app
from deploy.errors import FleetFileError
from deploy.fleet_file.settings import fleet_json_schema, parse_fleet_file
from pdmux_actor.backends.registry import BACKENDS, NAMED
from pdmux_actor.scheduling.policies.registry import POLICIES
from placement.solvers.registry import SOLVERS
from profiler.devices import DEVICES
from profiler.families.registry import FAMILIES
from scripts.chart.register_tables import documents
from scripts.chart.values_schema import values_schema
from traces.readers.registry import FILES, READERS
from traces.register import Named, Register

pytestmark = pytest.mark.usefixtures("syntax_trees")

ROOT = Path(__file__).resolve().parents[1]
MODEL = "models: [{id: a, source: x}]\n"


@dataclass(frozen=True, kw_only=True)
class Listed:
    """Where a register's names must be found. `key` is one of the fleet file, which takes all but `refused`;
    `helps` are verbs and options.
    """

    register: Register[Any]
    folder: str
    page: str
    key: tuple[str, str] | None = None
    refused: frozenset[str] = frozenset()
    helps: tuple[tuple[str, str], ...] = ()

    @property
    def taken(self) -> list[str]:
        return [name for name in self.register if name not in self.refused]


REGISTERS: Mapping[str, Listed] = {
    "policies": Listed(
        register=POLICIES,
        folder="pdmux_actor/scheduling/policies",
        page="docs/policies.md",
        key=("engine", "policy"),
        helps=(("simulate", "policy"),),
    ),
    "solvers": Listed(
        register=SOLVERS,
        folder="placement/solvers",
        page="docs/planner.md",
        key=("placement", "solver"),
        refused=frozenset({"alpaserve", "exhaustive", "muxserve_as_printed"}),
        helps=(("plan", "solver"), ("explain", "solver")),
    ),
    "backends": Listed(
        register=BACKENDS,
        folder="pdmux_actor/backends/entries",
        page="docs/sglang.md",
        key=("engine", "backend"),
        refused=frozenset({"simulated"}),
    ),
    "devices": Listed(register=DEVICES, folder="profiler/gpus", page="docs/latency-models.md"),
    "readers": Listed(register=READERS, folder="traces/readers", page="docs/simulation.md"),
    "families": Listed(register=FAMILIES, folder="profiler/families", page="docs/models.md"),
}
# File -> why it may name several although it is not in their folder.
NAMING: Mapping[str, str] = {
    "pdmux_actor/backends/sglang/options.py": "which of SGLang's own classes run in slices of layers",
}
any_register = pytest.mark.parametrize("listed", REGISTERS.values(), ids=list(REGISTERS))
in_fleet_file = pytest.mark.parametrize(
    "listed", [r for r in REGISTERS.values() if r.key], ids=[name for name, r in REGISTERS.items() if r.key]
)


def names_in_schema(schema: Mapping[str, Any], key: tuple[str, str]) -> Sequence[str]:
    """Of a key of a section, wherever the schema defines the section."""
    section, field = key
    found = schema["$defs"][f"{section.title()}Section"]["properties"][field]
    return next(option["enum"] for option in (found, *found.get("anyOf", ())) if "enum" in option)


@in_fleet_file
def test_schemas__any_register__hold_its_names(listed: Listed) -> None:
    assert listed.key is not None
    ours, charts = fleet_json_schema(), values_schema()

    assert listed.taken == list(names_in_schema(ours, listed.key))
    assert listed.taken == list(names_in_schema(charts, listed.key))


@in_fleet_file
def test_fleet_file__unknown_name__is_answered_with_the_nearest_and_all(listed: Listed) -> None:
    assert listed.key is not None
    section, field = listed.key
    name = listed.taken[0]

    with pytest.raises(FleetFileError) as refused:
        parse_fleet_file(f"{MODEL}{section}: {{{field}: {name}x}}", name="f.yaml", base=ROOT)

    known = ", ".join(listed.register)
    remedy = f"unknown {field}; did you mean {name}? known: {known}"
    assert str(refused.value) == f'f.yaml:2: {section}.{field} = "{name}x": {remedy}'


@in_fleet_file
def test_fleet_file__any_registered_name__is_taken(listed: Listed) -> None:
    assert listed.key is not None
    section, field = listed.key
    for name in listed.taken:
        fleet = parse_fleet_file(f"{MODEL}{section}: {{{field}: {name}}}", name="f.yaml", base=ROOT)
        assert getattr(getattr(fleet, section), field) == name


def test_gpu_type__any_case__schemas_show_the_names_and_the_error_lists_them() -> None:
    ours, charts = (
        schema["$defs"]["PoolSection"]["properties"]["gpu_type"] for schema in (fleet_json_schema(), values_schema())
    )
    pools = "pools: [{device: simulated, gpu_type: h10O}]"

    with pytest.raises(FleetFileError) as refused:
        parse_fleet_file(MODEL + pools, name="f.yaml", base=ROOT)

    assert list(DEVICES) == ours["anyOf"][0]["examples"] == charts["anyOf"][0]["examples"]
    assert str(refused.value).endswith(f"known: {', '.join(DEVICES)}")


def test_fleet_file__solver_for_a_handful_of_gpus__is_refused_with_those_that_run_fleets() -> None:
    with pytest.raises(FleetFileError) as refused:
        parse_fleet_file(f"{MODEL}placement: {{solver: exhaustive}}", name="f.yaml", base=ROOT)

    assert str(refused.value) == (
        'f.yaml:2: placement.solver = "exhaustive": is for muxfleet plan --solver exhaustive only; '
        "use one of memory_greedy, muxserve, search, spatial, spatial_groups"
    )


def test_fleet_file__backend_that_a_device_chooses__is_refused_with_how() -> None:
    with pytest.raises(FleetFileError) as refused:
        parse_fleet_file(f"{MODEL}engine: {{backend: simulated}}", name="f.yaml", base=ROOT)

    assert str(refused.value) == (
        'f.yaml:2: engine.backend = "simulated": is what native runs as on simulated devices; set device: simulated'
    )


def test_help__backend__lists_those_that_a_fleet_file_can_name() -> None:
    command: Any = typer.main.get_command(build_app())
    (found,) = [p for p in command.commands["profile"].params if p.name == "backend"]

    assert ", ".join(NAMED) in found.help


@pytest.mark.parametrize(
    ("verb", "option", "register"),
    [pytest.param(*h, r.register, id="-".join(h)) for r in REGISTERS.values() for h in r.helps],
)
def test_help__option_that_takes_names__lists_all(verb: str, option: str, register: Register[Any]) -> None:
    command: Any = typer.main.get_command(build_app())
    (found,) = [p for p in command.commands[verb].params if p.name == option]

    assert ", ".join(register) in found.help


@pytest.mark.parametrize("path", [("simulate", "trace"), ("bench", "trace"), ("traces", "stats", "file")], ids=" ".join)
def test_help__trace_file__lists_the_formats(path: tuple[str, ...]) -> None:
    command: Any = typer.main.get_command(build_app())
    for name in path[:-1]:
        command = command.commands[name]
    (found,) = [p for p in command.params if p.name == path[-1]]

    assert FILES in found.help


@any_register
def test_documents__any_register__have_a_row_for_every_name(listed: Listed) -> None:
    text = (ROOT / listed.page).read_text()

    assert documents(ROOT)[ROOT / listed.page] == text, "run `make chart`"
    rows = re.findall(r"^\| `([^`]+)`(?: \(default\))? \|", text, re.MULTILINE)
    assert [name for name in sorted(rows) if name in listed.register] == list(listed.register)


def literals_among(nodes: Iterable[ast.AST]) -> Sequence[ast.AST]:
    kinds = ast.Tuple | ast.List | ast.Set | ast.Dict | ast.Constant
    return [node for node in nodes if isinstance(node, kinds)]


def lists_by_hand(literals: Sequence[ast.AST], names: Register[Any]) -> Iterator[int]:
    """Lines of collections of two or more of the names, and of texts that enumerate three or more."""
    one = "|".join(map(re.escape, names))
    enumeration = re.compile(rf"\b(?:{one})(?:(?:, | or |, or )(?:{one})\b){{2,}}")
    for node in literals:
        match node:
            case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements) | ast.Dict(keys=elements):
                said = [e.value for e in elements if isinstance(e, ast.Constant)]
                if sum(value in names for value in said if isinstance(value, str)) >= 2:
                    yield node.lineno
            case ast.Constant(value=str(text)):
                if enumeration.search(text):
                    yield node.lineno


@pytest.fixture(scope="module")
def literals(syntax_trees: None) -> Mapping[Path, Sequence[ast.AST]]:
    """Every product file's, for all registers."""
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {path: literals_among(nodes_of(path)) for path in files}


@any_register
def test_names__files_outside_the_folder__do_not_list_them_again(
    listed: Listed, literals: Mapping[Path, Sequence[ast.AST]]
) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, found_there in literals.items()
        if not path.is_relative_to(ROOT / listed.folder) and str(path.relative_to(ROOT)) not in NAMING
        for line in lists_by_hand(found_there, listed.register)
    ]
    assert not found, f"ask the register instead: {found}"


@any_register
def test_register__any__holds_every_file_of_its_folder_that_declares_something(listed: Listed) -> None:
    declared = [
        target.id
        for path in (ROOT / listed.folder).glob("*.py")
        for node in tree_of(path).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id == listed.register.constant
    ]
    assert len(declared) == len(listed.register) > 1


# ---- the register itself ----


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('A = ("mux", "adbs")', [1]),
        ('A = {"mux": 1, "adbs": 2}', [1]),
        ('A = Literal["mux", "adbs"]', [1]),
        ('A = "use mux, adbs or temporal"', [1]),
        ('A = "use mux or adbs"', []),
        ('A = (f(name="mux"), f(name="adbs"))', []),
        ('A = ["mux", "other"]', []),
    ],
)
def test_lists_by_hand__samples__are_told_apart(source: str, lines: list[int]) -> None:
    assert list(lists_by_hand(literals_among(ast.walk(ast.parse(source))), POLICIES)) == lines


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable folder of entries; its name is not imported anywhere else."""
    room = tmp_path / f"room_{tmp_path.name.replace('-', '_')}"
    room.mkdir()
    (room / "__init__.py").touch()
    (room / "shapes.py").write_text(
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Shape:\n    name: str\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return room


def declare(folder: Path, module: str, value: str) -> None:
    text = f"from {folder.name}.shapes import Shape\nSHAPE = {value}\n"
    (folder / f"{module}.py").write_text(text)


def register_of(folder: Path) -> Register[Named]:
    shapes: Any = __import__(f"{folder.name}.shapes", fromlist=["Shape"])
    return Register(folder.name, "SHAPE", shapes.Shape)


def test_register__files_with_and_without_the_constant__holds_entries_by_name(folder: Path) -> None:
    declare(folder, "a", "Shape('square')")
    declare(folder, "b", "Shape('circle')")

    found = register_of(folder)

    assert list(found) == ["circle", "square"]
    assert found["square"].name == "square"
    assert found.remedy("squar") == "unknown shape; did you mean square? known: circle, square"
    assert found.remedy("?") == "unknown shape; known: circle, square"


def test_register__two_files_of_one_name__says_which(folder: Path) -> None:
    declare(folder, "a", "Shape('square')")
    declare(folder, "b", "Shape('square')")

    with pytest.raises(ValueError, match=rf"{folder.name}\.a: another SHAPE of {folder.name} is named 'square'"):
        register_of(folder)


def test_register__constant_of_another_kind__says_which(folder: Path) -> None:
    declare(folder, "a", "Shape")

    with pytest.raises(TypeError, match=rf"{folder.name}\.a: SHAPE must be a Shape, not <class"):
        register_of(folder)
