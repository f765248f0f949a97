"""YAML text to plain data, with the line of every key: duplicate keys, tags and octal numbers are refused."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from deploy.errors import FleetFileError

KeyPath = tuple[str | int, ...]
_MAX_NODES = 100_000
# Numbers as JSON writes them, which YAML 1.1 takes for text: 1e-05, 1.5e3. Without a dot the exponent needs its sign:
# 12345e6 may be the short name of a commit.
_JSON_FLOAT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*[eE][-+]?|[eE][-+])[0-9]+\Z")
_MOST = 2**53  # where JSON's readers begin to round; engines and what they are told by count to 2**63
_INT, _FLOAT, _TEXT, _TIME, _MERGE = (
    f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "str", "timestamp", "merge")
)
_OCTAL = re.compile(r"[-+]?0[0-9_]+\Z")  # YAML 1.1; to 1.2 it is decimal
_NO_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")  # no path, name or JSON holds any


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlSource:
    """`lines` maps the path of a key or list item to its line, counted from 1."""

    name: str
    data: object
    lines: Mapping[KeyPath, int]

    def place(self, path: KeyPath) -> str:
        """`name:line` of the nearest known ancestor of `path`."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return f"{self.name}:{self.lines[path[:end]]}"
        return self.name


def path_text(path: KeyPath) -> str:
    """Writes a path the way users think of it.

    >>> path_text(("models", 0, "slo", "ttft_s"))
    'models[0].slo.ttft_s'
    """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def parse_yaml(text: str, name: str) -> YamlSource:
    """Raises FleetFileError: the text is not YAML, is empty, repeats a key, or is not made of plain values."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            raise FleetFileError([f"{name}: the file is empty; start from examples/demo.yaml"])
        lines = _Lines(name).of(root)
        return YamlSource(name=name, data=loader.construct_document(root), lines=lines)
    except RecursionError as error:
        raise FleetFileError([f"{name}: nested too deeply"]) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}" if mark else name
        raise FleetFileError([f"{place}: not valid YAML: {error.problem or error.context}"]) from error
    except yaml.YAMLError as error:
        raise FleetFileError([f"{name}: not valid YAML: {' '.join(str(error).split())}"]) from error


class _Loader(yaml.SafeLoader):
    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: tuple[bool, bool]) -> str:
        if kind is yaml.ScalarNode and implicit[0] and value is not None and _JSON_FLOAT.match(value):
            return _FLOAT
        tag = str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]  # so in PyYAML's stubs
        if tag in (_INT, _FLOAT) and value is not None and ":" in value:
            return _TEXT  # 19:00 is a time, and not 1140
        return _TEXT if tag == _TIME else tag  # no setting is a date: a branch may have one's name

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """PyYAML lets what its converters raise through, of a number with 5,000 digits or of `!!int none`."""
        try:
            value: object = super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            reason = f"{str(node.value)[:40]!r} is no {node.tag.rpartition(':')[2]}; correct it, or put text in quotes"
            raise yaml.constructor.ConstructorError(None, None, reason, node.start_mark) from error
        if isinstance(value, int) and abs(value) > _MOST:
            reason = f"{value} is beyond {_MOST}, the most that is counted to; lower it"
            raise yaml.constructor.ConstructorError(None, None, reason, node.start_mark)
        return value


class _Lines:
    """Walks the node tree once, and has its keys read as text."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines: dict[KeyPath, int] = {}
        self._open: set[int] = set()

    def of(self, root: yaml.Node) -> Mapping[KeyPath, int]:
        self._walk(root, ())
        return self._lines

    def _walk(self, node: yaml.Node, path: KeyPath) -> None:
        if id(node) in self._open:
            raise self._refuse(node, path, "an alias contains itself; write the value out")
        if len(self._lines) > _MAX_NODES:
            raise self._refuse(node, path, f"more than {_MAX_NODES} values; split the file")
        self._lines.setdefault(path, node.start_mark.line + 1)
        self._open.add(id(node))
        if isinstance(node, yaml.MappingNode):
            self._walk_mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._walk(item, (*path, index))
        elif (reason := _fault(node.tag, str(node.value))) is not None:
            raise self._refuse(node, path, reason)
        self._open.discard(id(node))

    def _walk_mapping(self, node: yaml.MappingNode, path: KeyPath) -> None:
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                raise self._refuse(key_node, path, "a key is a list or a mapping; keys are plain words")
            line = key_node.start_mark.line + 1
            if key in seen:
                raise self._refuse(
                    key_node, (*path, key), f"the key appears twice (first in line {seen[key]}); keep one"
                )
            seen[key] = line
            if key_node.tag != _MERGE:
                key_node.tag = _TEXT  # as it is written: on and 1 are no true and no number
            self._lines[*path, key] = line
            self._walk(value_node, (*path, key))

    def _refuse(self, node: yaml.Node, path: KeyPath, reason: str) -> FleetFileError:
        where = f"{path_text(path)}: " if path else ""
        return FleetFileError([f"{self._name}:{node.start_mark.line + 1}: {where}{reason}"])


def _fault(tag: str, text: str) -> str | None:
    """Of a single value."""
    if found := _NO_TEXT.search(text):
        return f"{text[:40]!r} holds the character {found.group()!a}; remove it"
    if tag == _INT and _OCTAL.match(text):
        return f"{text} is octal, which is {int(text.replace('_', ''), 8)}; write the number without a 0 before it"
    return None
