"""Rules of CONTRIBUTING.md that no linter knows. A rule that nothing runs is not a rule."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import pytest
from source_trees import nodes_of, tree_of

pytestmark = pytest.mark.usefixtures("syntax_trees")

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("traces", "profiler", "placement", "pdmux_actor", "router", "deploy", "muxfleet")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
BANNED_NAMES = frozenset({"utils", "util", "common", "helpers", "helper", "misc", "core", "manager"})
MUTABLE_CALLS = frozenset({"dict", "list", "set", "defaultdict", "deque", "OrderedDict", "Counter", "bytearray"})
PICKLES = frozenset({"pickle", "cloudpickle", "dill", "marshal", "shelve"})
FROZEN_CALLS = frozenset({"frozenset", "tuple", "MappingProxyType"})

# File -> why it may look at the environment although it is not deploy/environment.py.
ENVIRONMENT_READERS: dict[str, str] = {
    "pdmux_actor/serving/cuda_ranks.py": "Ray says there which GPUs a unit has",
    "pdmux_actor/backends/native.py": "an engine has it, and how long its OpenMP threads stay awake",
    "pdmux_actor/serving/rank_processes.py": "the other ranks have it, too, but for their GPUs",
    "pdmux_actor/executor/cuda/cuda_device.py": "CUDA takes its number of hardware queues from nowhere else",
}

# Pure modules that the planner, the simulator and a gateway's decisions need; none of them may pull in torch.
TORCH_FREE_MODULES = (
    "traces.record",
    "profiler.roofline",
    "placement.plan",
    "placement.solvers.memory_greedy",
    "placement.solvers.search",
    "placement.plan_explanation",
    "pdmux_actor.messages",
    "pdmux_actor.lease",
    "pdmux_actor.engine",
    "pdmux_actor.executor.base",
    "pdmux_actor.executor.simulated",
    "pdmux_actor.scheduling.scheduler",
    "pdmux_actor.serving.frames",
    "router.view",
    "router.routing.routing",
    "router.admission.admission",
)


def product_files() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tracked_files() -> list[Path]:
    """Text files that git knows; without git (an unpacked archive) what the packages hold."""
    listing = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        return [path for path in product_files() if path.is_file()]
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_files__any__are_short() -> None:
    long = {
        relative(path): lines
        for path in [*product_files(), *sorted((ROOT / "tests").rglob("*.py"))]
        if (lines := len(path.read_text().splitlines())) > MAX_FILE_LINES
    }
    assert not long, f"files above {MAX_FILE_LINES} lines: {long}"


def test_functions__any__are_short() -> None:
    long = {
        f"{relative(path)}:{node.name}": lines
        for path in product_files()
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and (lines := node.end_lineno - node.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert not long, f"functions above {MAX_FUNCTION_LINES} lines: {long}"


def names_with_banned_words() -> Iterator[str]:
    for path in product_files():
        if BANNED_NAMES & {part.lower() for part in (path.parent.name, *path.stem.split("_"))}:
            yield relative(path)
        for node in nodes_of(path):
            words = re.findall(r"[A-Z][a-z]+", node.name) if isinstance(node, ast.ClassDef) else []
            if BANNED_NAMES & {word.lower() for word in words}:
                yield f"{relative(path)}:{node.name}"


def test_names__modules_and_classes__say_something() -> None:
    assert not list(names_with_banned_words())


def test_globals__any_function__declares_none() -> None:
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in product_files()
        for node in nodes_of(path)
        if isinstance(node, ast.Global)
    ]
    assert not found, f"'global' makes hidden state: {found}"


def is_constant_mapping(node: ast.AnnAssign | ast.Assign) -> bool:
    """`NAME: Mapping[...] = {...}` (or Sequence, Final) cannot be written to under mypy --strict."""
    if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
        return False
    annotation = ast.unparse(node.annotation).removeprefix("Final[")
    return node.target.id.isupper() and annotation.startswith(("Mapping", "Sequence", "AbstractSet", "Collection"))


def is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp):
        return True
    if isinstance(value, ast.Call):
        name = ast.unparse(value.func).rsplit(".", 1)[-1]
        return name in MUTABLE_CALLS and name not in FROZEN_CALLS
    return False


def mutable_module_state(tree: ast.Module) -> Iterator[int]:
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_mutable(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            is_dunder = all(isinstance(t, ast.Name) and t.id.startswith("__") for t in targets)
            if not is_dunder and not is_constant_mapping(node):
                yield node.lineno


def test_module_state__any_module__is_immutable() -> None:
    found = [f"{relative(path)}:{line}" for path in product_files() for line in mutable_module_state(tree_of(path))]
    assert not found, f"annotate constants as Mapping/Sequence, or use MappingProxyType/frozenset/tuple: {found}"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("cache = {}", [1]),
        ("CACHE: dict[str, int] = {}", [1]),
        ("seen = set()\nqueue = collections.deque()", [1, 2]),
        ("NAMES = [n for n in x]", [1]),
        ("BYTES: Mapping[str, int] = {'a': 1}", []),
        ("NAMES = frozenset({'a'})\nX = MappingProxyType({})\nY = (1,)", []),
        ("def f():\n    local = {}", []),
    ],
)
def test_mutable_module_state__samples__are_told_apart(source: str, lines: list[int]) -> None:
    assert list(mutable_module_state(ast.parse(source))) == lines


def test_init_files__any_package__are_empty() -> None:
    filled = [relative(path) for path in product_files() if path.name == "__init__.py" and path.read_text().strip()]
    assert not filled, f"importing a module runs its package's __init__.py; keep it empty: {filled}"


def test_tests__folders__hold_unique_module_names() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names)), "pytest needs unique file names: tests/ has no __init__.py"


def test_tests_named_in_docs__any__exist() -> None:
    pages = [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]
    named = {name for page in pages for name in re.findall(r"`(test_[a-z0-9_]+)`", page.read_text())}
    functions = re.compile(r"^ *(?:async )?def (\w+)\(", re.MULTILINE)
    defined = {name for path in (ROOT / "tests").rglob("test_*.py") for name in functions.findall(path.read_text())}
    assert named
    assert not named - defined, f"a document names tests that do not exist: {sorted(named - defined)}"


def test_doctests__any_product_file__are_collected() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert "--doctest-modules" in settings["addopts"]
    collected = tuple(settings["testpaths"])
    missed = [
        relative(path)
        for path in product_files()
        if re.search(r"^\s*>>> ", path.read_text(), re.MULTILINE) and not relative(path).startswith(collected)
    ]
    assert not missed, f"add to testpaths in pyproject.toml: {missed}"


def test_doctests__what_tests_share__holds_none() -> None:
    """tests/conftest.py keeps pytest from these files: it would import what only some runs have packages for."""
    shared = [path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_")]
    assert shared
    assert not [relative(path) for path in shared if re.search(r"^\s*>>> ", path.read_text(), re.MULTILINE)]


def test_pickle__any_module__is_not_imported() -> None:
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in product_files()
        for node in nodes_of(path)
        if (isinstance(node, ast.Import) and {a.name.split(".")[0] for a in node.names} & PICKLES)
        or (isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in PICKLES)
    ]
    assert not found, f"unpickling runs code of whoever sent the bytes: {found}"


@pytest.fixture(scope="module")
def distributions() -> Mapping[str, Sequence[str]]:
    """Of each package that is installed; to read them takes a quarter of a second."""
    return metadata.packages_distributions()


@pytest.mark.parametrize("package", PACKAGES)
def test_package_names__flat_and_generic__are_ours_alone(
    package: str, distributions: Mapping[str, Sequence[str]]
) -> None:
    others = set(distributions.get(package, ())) - {"muxfleet"}
    assert not others, f"{others} brings a package of the same name"


def test_tracked_files__any__hold_no_machine_paths() -> None:
    machine_path = re.compile(r"(?<![\w./-])/(?:work|root|home)/[\w.-]+")
    found = []
    for path in tracked_files():
        if path.suffix in {".png", ".parquet", ".safetensors"} or path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            if machine_path.search(line):
                found.append(f"{relative(path)}:{number}: {line.strip()[:80]}")
    assert not found, f"paths of one machine: {found}"


def is_attribute(node: ast.AST, *names: str, of: str) -> bool:
    owner = node.value if isinstance(node, ast.Attribute) and node.attr in names else None
    return isinstance(owner, ast.Name) and owner.id == of


def environment_reads(path: Path) -> Iterator[int]:
    for node in nodes_of(path):
        if is_attribute(node, "environ", "getenv", "environb", of="os"):
            yield node.lineno
        if (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and {a.name for a in node.names} & {"environ", "getenv"}
        ):
            yield node.lineno


def test_environment__outside_its_file__is_not_read() -> None:
    found = [
        f"{relative(path)}:{line}"
        for path in product_files()
        if relative(path) != "deploy/environment.py" and relative(path) not in ENVIRONMENT_READERS
        for line in environment_reads(path)
    ]
    assert not found, f"only deploy/environment.py reads the environment: {found}"


def test_environment__allow_list__names_files_that_read_it() -> None:
    stale = [name for name in ENVIRONMENT_READERS if not list(environment_reads(ROOT / name))]
    assert not stale


# Files that are named as examples of what others may have.
FILES_OF_OTHERS = frozenset({"deploy.py", "queue.py"})


def test_files_named_in_comments__any_product_file__are_there() -> None:
    present = {path.name for path in tracked_files()}
    named = re.compile(r"(?<![\w.-])[a-z][a-z0-9_]*\.py\b")
    found = [
        f"{relative(path)}: {name}"
        for path in product_files()
        for name in named.findall(path.read_text())
        if name not in present | FILES_OF_OTHERS
    ]
    assert not found, f"there is no such file: {found}"


def test_pure_modules__imported__leave_torch_out() -> None:
    present = [
        name
        for name in TORCH_FREE_MODULES
        if (ROOT / (name.replace(".", "/") + ".py")).exists() or (ROOT / name.replace(".", "/")).is_dir()
    ]
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, f'{name} imports torch'\n"
        "    assert 'ray' not in sys.modules, f'{name} imports ray'\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, *present], cwd=ROOT, capture_output=True, text=True, check=False, timeout=240
    )
    assert run.returncode == 0, run.stderr


def unbounded_waits(source: str, nodes: Sequence[ast.AST]) -> Iterator[int]:
    """Lines that wait for another process, thread or task without a deadline and do not say why they need none."""
    lines = source.splitlines()
    bounded = {
        id(inner)
        for node in nodes
        if (isinstance(node, ast.AsyncWith) and any("timeout(" in ast.unparse(i.context_expr) for i in node.items))
        or (isinstance(node, ast.Call) and is_attribute(node.func, "wait_for", of="asyncio"))
        for inner in ast.walk(node)
    }
    for node in nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or id(node) in bounded:
            continue
        has_timeout = any(k.arg in {"timeout", "timeout_s"} for k in node.keywords)
        waits = node.func.attr in {"wait", "join", "get"} and not node.args
        waits |= is_attribute(node.func, "wait", of="asyncio") or is_attribute(node.func, "get", of="ray")
        waits &= not has_timeout
        nearby = lines[max(0, node.lineno - 2) : node.lineno + 1]
        if waits and not any("no deadline:" in line for line in nearby):
            yield node.lineno


def test_waits__any_product_file__have_a_deadline_or_say_why_not() -> None:
    found = [
        f"{relative(path)}:{line}"
        for path in product_files()
        for line in unbounded_waits(path.read_text(), nodes_of(path))
    ]
    assert not found, f"bound it by a setting, or say beside it why there is '# no deadline: ...': {found}"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("thread.join()", [1]),
        ("await queue.get()", [1]),
        ("await asyncio.wait([task])", [1]),
        ("await asyncio.wait([task], timeout=1)", []),
        ("event.wait(timeout=2)\nthread.join(5)\n', '.join(names)\nd.get('k')", []),
        ("await asyncio.wait_for(event.wait(), 3)", []),
        ("async def f():\n    async with asyncio.timeout(3):\n        await event.wait()", []),
        ("# no deadline: it ends with the process\nthread.join()", []),
        ("ray.get(reference)", [1]),
    ],
)
def test_unbounded_waits__samples__are_told_apart(source: str, lines: list[int]) -> None:
    assert list(unbounded_waits(source, list(ast.walk(ast.parse(source))))) == lines
