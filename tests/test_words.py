"""The words of ARCHITECTURE.md: one name for one thing, and a row for every room of the product."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_trees import nodes_of, tree_of

from muxfleet.own_packages import PACKAGES

pytestmark = pytest.mark.usefixtures("syntax_trees")

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| `([\w/]+/)` \|$", re.MULTILINE)

# A docstring that begins so has no verb of its own: "Of one unit.", "What a plan serves.", "Whether it fits."
FRAGMENT = re.compile(
    r"(Of|For|From|By|At|In|On|With|Without|Until|As|To|Into|Beside|Between|After|Before|Beyond|Among|Under|Over|Up|Within"
    r"|Who|Whom|Whose|Which|That|Those|Where|When|Whether|Why|How|What)\b"
)


def product_files() -> Iterator[Path]:
    for package in (*PACKAGES, "muxfleet"):
        yield from (p for p in sorted((ROOT / package).rglob("*.py")) if p.name != "__init__.py")


def room_of(path: Path) -> str:
    return f"{path.parent.relative_to(ROOT).as_posix()}/"


def public_classes() -> Iterator[tuple[str, Path]]:
    for path in product_files():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, path


def rows() -> list[tuple[str, str, str, str]]:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    return ROW.findall(text[text.index("## Words") : text.index("## The map")])


def test_class_names__public_ones__stand_once() -> None:
    places = defaultdict(list)
    for name, path in public_classes():
        places[name].append(path.relative_to(ROOT).as_posix())
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


def test_glossary__any_module__stands_in_a_room_with_a_row() -> None:
    rooms = {room for *_, room in rows()}
    assert not {room_of(path) for path in product_files()} - rooms, "give the room a row in ARCHITECTURE.md"
    assert not rooms - {room_of(path) for path in product_files()}, "there is no such room"


def test_glossary__classes_it_names__are_in_their_rooms_and_stand_once() -> None:
    defined = {(name, room_of(path)) for name, path in public_classes()}
    named = [(name, room) for *_, classes, room in rows() for name in re.findall(r"`(\w+)`", classes)]
    assert not [pair for pair in named if pair not in defined]
    assert not [name for name, count in Counter(name for name, _ in named).items() if count > 1]


def test_glossary__concepts__stand_once() -> None:
    assert not [c for c, count in Counter(concept for concept, *_ in rows()).items() if count > 1]


def docstrings() -> Iterator[tuple[str, str]]:
    """Those of modules and of what is public, by file and line."""
    for path in product_files():
        for node in nodes_of(path):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            is_private = getattr(node, "name", "").startswith("_") and not getattr(node, "name", "").endswith("__")
            if not is_private and (text := ast.get_docstring(node)):
                yield f"{path.relative_to(ROOT).as_posix()}:{node.body[0].lineno}", text


def test_docstrings__public_ones__begin_with_a_sentence_and_not_with_a_fragment() -> None:
    found = [f"{place} {text.splitlines()[0]}" for place, text in docstrings() if FRAGMENT.match(text)]
    assert not found, f"say what it does: {found}"


@pytest.mark.parametrize(
    ("text", "is_fragment"),
    [
        ("Of one unit.", True),
        ("Whether it fits.", True),
        ("What a plan serves.", True),
        ("Returns what a plan serves.", False),
        ("Offers units to a request.", False),
        ("One row per request.", False),
    ],
)
def test_fragments__samples__are_told_apart(text: str, is_fragment: bool) -> None:
    assert bool(FRAGMENT.match(text)) == is_fragment
