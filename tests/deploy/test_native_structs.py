"""Sources as mypyc gets them do what they did."""

import ast
from typing import Any, TypeVar

from deploy.compilation.compiled_modules import compiled_sources, sources_folder
from deploy.compilation.native_structs import compilable

SOURCE = '''
from typing import ClassVar
import msgspec

class Place(msgspec.Struct, frozen=True, gc=False):
    """A place."""

    row: int
    column: int = 3
    kind: ClassVar[str] = "place"

    @property
    def sum(self):
        return self.row + self.column

class Step(msgspec.Struct, kw_only=True, gc=False):
    size: int = 1
    name: str
    seen: dict[str, int] = msgspec.field(default_factory=dict)

def total(rows):
    return sum(row * 0.1 for row in rows), sum((row for row in rows), 5), sum(rows)
'''


def defined(source: str) -> dict[str, object]:
    names: dict[str, object] = {"__name__": "sample"}
    exec(source, names)
    return names


def test_compilable__structs__are_made_compared_and_hashed_as_before():
    before, after = defined(SOURCE), defined(compilable(SOURCE))

    for names in (before, after):
        place, step = names["Place"], names["Step"]
        assert (place(1).sum, place(1, 4).sum, place(row=2, column=5).column, place.kind) == (4, 5, 5, "place")
        assert place(1, 4) == place(1, column=4) != place(2, 4)
        assert place(1) != 1
        assert len({place(1), place(1, 3), place(2)}) == 2
        one, other = step(name="a"), step(name="a", size=1)
        assert one == other
        one.seen["x"] = 1
        one.size = 7
        assert (one.size, other.size, other.seen) == (7, 1, {})
        assert names["total"]([1, 2, 3]) == (0.1 + 0.2 + 0.1 * 3, 11, 6)


def test_compilable__sum_of_a_generator__adds_up_a_list():
    assert compilable("x = sum(i for i in y if i)") == "x = sum([i for i in y if i])"


def test_compilable__function_of_floats_and_of_arrays__becomes_one_of_anything():
    source = """
from typing import TypeVar
Amount = TypeVar('Amount', float, complex)
Other = TypeVar('Other')

def twice(x: Amount) -> Amount:
    return 2 * x
"""
    names = defined(compilable(source))

    assert names["Amount"] is Any
    assert isinstance(names["Other"], TypeVar)
    assert (names["twice"](1.5), names["twice"](1j)) == (3.0, 2j)


def test_compilable__isinstance_of_a_union__asks_for_any_of_its_members():
    assert compilable("isinstance(x, A | b.C | D)") == "isinstance(x, (A, b.C, D))"


def test_compilable__every_module_that_may_run_compiled__has_no_struct_left():
    for path in compiled_sources():
        rewritten = ast.parse(compilable((sources_folder() / path).read_text()))
        left = [n.name for n in rewritten.body if isinstance(n, ast.ClassDef) and n.keywords]
        assert not left, path
