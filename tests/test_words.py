"""The words of ARCHITECTURE.md: one name for one thing, and a row for every room of the product."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from muxfleet.own_packages import PACKAGES

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| `([\w/]+/)` \|$", re.MULTILINE)


def product_files() -> Iterator[Path]:
    for package in (*PACKAGES, "muxfleet"):
        yield from (p for p in sorted((ROOT / package).rglob("*.py")) if p.name != "__init__.py")


def room_of(path: Path) -> str:
    return f"{path.parent.relative_to(ROOT).as_posix()}/"


def public_classes() -> Iterator[tuple[str, Path]]:
    for path in product_files():
        for node in ast.parse(path.read_text()).body:
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
