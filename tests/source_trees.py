"""Syntax trees of sources, for tests that hold them to rules. Those use `syntax_trees` of conftest.py."""

import ast
import gc
from collections.abc import Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("traces", "profiler", "placement", "pdmux_actor", "router", "deploy", "muxfleet", "scripts")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes_of(path: Path) -> Sequence[ast.AST]:
    """Those of `ast.walk`, in half its time, without what says whether a name is read or written."""
    nodes: list[ast.AST] = [tree_of(path)]
    for node in nodes:
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, list):
                nodes += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                nodes.append(value)
    return nodes


def keep_trees() -> None:
    """Nothing looks for garbage among their nodes, neither when they are made, which would take three times as long,
    nor later.
    """
    gc.disable()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            nodes_of(path)
    gc.freeze()
    gc.enable()
