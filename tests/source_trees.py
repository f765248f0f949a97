"""Syntax trees of sources, for tests that hold them to rules. Those use `syntax_trees` of conftest.py."""

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


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
