"""Syntax trees of sources, for tests that hold them to rules. Those use `syntax_trees` of conftest.py."""

import ast
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path


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


@contextmanager
def kept_trees() -> Iterator[None]:
    """Nothing looks for garbage among their millions of nodes: to do so takes three times as long as to parse them."""
    gc.disable()
    try:
        yield
    finally:
        tree_of.cache_clear()
        nodes_of.cache_clear()
        gc.enable()
