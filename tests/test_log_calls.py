"""What the processes of a fleet log: constant messages, and what they concern as fields."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_trees import nodes_of

pytestmark = pytest.mark.usefixtures("syntax_trees")

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("pdmux_actor/serving", "pdmux_actor/backends", "router", "deploy")
LEVELS = frozenset({"info", "warning", "error", "exception", "critical", "log"})
PASSED_ON = {
    "pdmux_actor/backends/native.py": "lines of the engine process, which have fields of their own",
    "router/telemetry/service_report.py": "the request log, each line of which is a JSON document",
}
FIELDS = {
    "pdmux_actor/serving/lease_follower.py": {"model"},
    "pdmux_actor/serving/loaded_models.py": {"model"},
    "pdmux_actor/serving/sleeping_models.py": {"model"},
    "pdmux_actor/backends/sglang/streams.py": {"generation_id", "model"},
    "router/transport/frame_connection.py": {"unit", "endpoint"},
    "router/transport/unit_client.py": {"unit", "endpoint"},
    "router/serving/generation_relay.py": {"request_id", "generation_id", "model", "unit"},
    "router/http/streaming.py": {"request_id"},
    "router/http/request_identity.py": {"request_id"},
    "deploy/serve/unit_calls.py": {"unit", "pool"},
}
"""What each line of a file names; `unit` of what a unit itself logs is in every line of its replica."""


def calls(file: Path) -> Iterator[tuple[ast.Call, ast.AST]]:
    """Of the file's logger, each with its function."""
    for function in nodes_of(file):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in LEVELS
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id == "logger"
                ):
                    yield node, function


def told(call: ast.Call, function: ast.AST) -> set[str]:
    """Names of the fields in `extra`, also where it is a variable of the function."""
    extra = next((k.value for k in call.keywords if k.arg == "extra"), None)
    if isinstance(extra, ast.Name):
        name = extra.id
        assigned = [
            n.value for n in ast.walk(function) if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == name
        ]
        (extra,) = assigned
    return {str(ast.literal_eval(key)) for key in extra.keys if key} if isinstance(extra, ast.Dict) else set()


def files() -> list[Path]:
    return sorted(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))


def test_log_calls__of_a_replica_s_processes__have_constant_messages() -> None:
    """A message with values in it can be neither counted nor searched for; they are fields."""
    wrong = [
        f"{file.relative_to(ROOT)}:{call.lineno}"
        for file in files()
        if str(file.relative_to(ROOT)) not in PASSED_ON
        for call, _ in calls(file)
        if not isinstance(call.args[-1], ast.Constant)
        or len(call.args) > (2 if ast.unparse(call.func) == "logger.log" else 1)
    ]

    assert not wrong, f"a constant message and `extra={{...}}`: {wrong}"


@pytest.mark.parametrize("name", FIELDS)
def test_log_calls__of_a_file_that_knows_what_they_concern__name_it(name: str) -> None:
    found = [(call.lineno, told(call, function)) for call, function in calls(ROOT / name)]

    assert found, "it logs nothing any more"
    assert not [(line, FIELDS[name] - fields) for line, fields in found if not FIELDS[name] <= fields]
