"""Rewrites a module's source so that mypyc compiles it to what Python makes of it, and to fast code.

mypyc makes of `class Chunk(msgspec.Struct, frozen=True)` a class of Python's without the `frozen`. A class that sets
its fields in an `__init__` of its own becomes a C struct instead: fields are read without a look-up. A union of classes
in `isinstance` is made anew at each call; a tuple is not. And mypyc adds up `sum(x for ...)` by itself, where `sum` of
Python 3.12 and later keeps what rounding loses: of a list it calls `sum`. Functions of floats and of arrays alike it
refuses, with their TypeVar of both: they become functions of anything.
"""

import ast
from collections.abc import Iterator


def compilable(source: str) -> str:
    """Returns the source of a module that does the same and nothing with its structs' being structs: none of those that
    it defines may be encoded, or given to a function of msgspec.
    """
    tree = _TypeVars().visit(_Calls().visit(ast.parse(source)))
    tree.body = [_native(node) if _is_struct(node) else node for node in tree.body]
    return ast.unparse(ast.fix_missing_locations(tree))


class _Calls(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="sum"), args=[ast.GeneratorExp(elt=elt, generators=generators), *rest]):
                node.args = [ast.ListComp(elt=elt, generators=generators), *rest]
            case ast.Call(func=ast.Name(id="isinstance"), args=[value, ast.BinOp(op=ast.BitOr()) as union]):
                node.args = [value, ast.Tuple(elts=list(_members(union)), ctx=ast.Load())]
        return node


class _TypeVars(ast.NodeTransformer):
    """Makes Any of those with a choice of types."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        names = [alias.name for alias in node.names]
        if node.module == "typing" and "TypeVar" in names and "Any" not in names:
            node.names.append(ast.alias("Any"))
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        match node.value:
            case ast.Call(func=ast.Name(id="TypeVar"), args=[_, _, *_]):
                node.value = ast.Name("Any", ast.Load())
        return node


def _members(union: ast.expr) -> Iterator[ast.expr]:
    if isinstance(union, ast.BinOp):
        yield from _members(union.left)
        yield from _members(union.right)
    else:
        yield union


def _is_struct(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and [ast.unparse(base) for base in node.bases] == ["msgspec.Struct"]


def _native(node: ast.stmt) -> ast.ClassDef:
    assert isinstance(node, ast.ClassDef)
    options = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
    fields = [s for s in node.body if isinstance(s, ast.AnnAssign) and not _is_class_variable(s)]
    names = [ast.unparse(field.target) for field in fields]
    made = [_initialiser(fields, kw_only=options.get("kw_only", False)), _equality(node.name, names)]
    if options.get("frozen", False):
        made.append(_hash(names))
    node.bases, node.keywords = [], []
    for field in fields:
        field.value = None
    node.body += [statement for text in made for statement in ast.parse(text).body]
    return node


def _is_class_variable(field: ast.AnnAssign) -> bool:
    return ast.unparse(field.annotation).startswith("ClassVar[")


def _initialiser(fields: list[ast.AnnAssign], *, kw_only: bool) -> str:
    """A field with a default factory is no parameter: nobody gives it."""
    parameters, lines = ["self", *(["*"] if kw_only else [])], []
    for field in fields:
        name, kind = ast.unparse(field.target), ast.unparse(field.annotation)
        match field.value:
            case ast.Call(keywords=[ast.keyword(arg="default_factory", value=factory)]):
                lines.append(f"self.{name} = {ast.unparse(factory)}()")
                continue
            case None:
                parameters.append(f"{name}: {kind}")
            case default:
                parameters.append(f"{name}: {kind} = {ast.unparse(default)}")
        lines.append(f"self.{name} = {name}")
    return "\n    ".join([f"def __init__({', '.join(parameters)}) -> None:", *lines])


def _equality(class_name: str, names: list[str]) -> str:
    same = " and ".join([f"isinstance(other, {class_name})", *[f"self.{name} == other.{name}" for name in names]])
    return f"def __eq__(self, other: object) -> bool:\n    return {same}"


def _hash(names: list[str]) -> str:
    return f"def __hash__(self) -> int:\n    return hash(({', '.join(f'self.{name}' for name in names)},))"
