"""Reads calls of tools that are written as Python's, `f(x="a", n=1)`: OLMo 3's and Llama 4's.

Values may be JSON's too (`true`, `null`), names Python's keywords, and texts have line breaks: templates write them so
(vllm-project/vllm, examples/tool_chat_template_olmo3.jinja and tool_chat_template_llama4_pythonic.jinja).
"""

import math
import re
from collections.abc import Iterator, Mapping

_DEEPEST = 64
_TOKEN = re.compile(
    r'"""(?P<long>(?:[^"\\]|\\.|"(?!""))*)"""|"(?P<double>(?:[^"\\]|\\.)*)"|\'(?P<single>(?:[^\'\\]|\\.)*)\''
    r"|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?!\w)|(?P<name>[A-Za-z_][\w.:/-]*)"
    r"|(?P<mark>[()\[\]{},:=;])|\s+",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_ESCAPED: Mapping[str, str] = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "\n": "",
    **{c: c for c in "\\'\"/"},
}
_LITERALS: Mapping[str, bool | None] = {
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    "null": None,
    "None": None,
}

Token = tuple[str, str]


class _NoCallError(Exception):
    """The text is something else."""


def python_calls(text: str) -> list[dict[str, object]] | None:
    """Returns each call's `name` and `arguments`, of one call, several on lines of their own, or a list of them. None:
    not all of it is calls, whose arguments all have names.
    """
    try:
        reading = _Reading(_tokens(text))
        return list(reading.calls())
    except (_NoCallError, ValueError, OverflowError):  # of a number, or a character, of too many digits
        return None


class _Reading:
    def __init__(self, tokens: Iterator[Token]) -> None:
        self._tokens = tokens
        self._next = next(tokens, None)

    def calls(self) -> Iterator[dict[str, object]]:
        is_list = self._takes("[")
        while self._next not in (None, ("mark", "]")):
            yield {"name": self._take("name"), "arguments": self._arguments()}
            _ = self._takes(",") or self._takes(";")
        if self._takes("]") is not is_list or self._next is not None:
            raise _NoCallError

    def _arguments(self) -> dict[str, object]:
        self._mark("(")
        arguments: dict[str, object] = {}
        while not self._takes(")"):
            name = self._take("name")
            self._mark("=")
            arguments[name] = self._value(0)
            if not self._takes(","):
                self._mark(")")
                break
        return arguments

    def _value(self, depth: int) -> object:
        if depth > _DEEPEST:
            raise _NoCallError
        if self._takes("["):
            return list(self._items("]", depth))
        if self._takes("("):
            return list(self._items(")", depth))
        if self._takes("{"):
            return dict(self._entries(depth))
        kind, text = self._advance()
        match kind:
            case "text":
                return text
            case "number":
                return int(text) if text.lstrip("+-").isdigit() else _finite(float(text))
            case "name" if text in _LITERALS:
                return _LITERALS[text]
        raise _NoCallError

    def _items(self, end: str, depth: int) -> Iterator[object]:
        while not self._takes(end):
            yield self._value(depth + 1)
            if not self._takes(","):
                self._mark(end)
                return

    def _entries(self, depth: int) -> Iterator[tuple[str, object]]:
        while not self._takes("}"):
            key = self._take("text")
            self._mark(":")
            yield key, self._value(depth + 1)
            if not self._takes(","):
                self._mark("}")
                return

    def _takes(self, mark: str) -> bool:
        if self._next != ("mark", mark):
            return False
        self._advance()
        return True

    def _mark(self, mark: str) -> None:
        if not self._takes(mark):
            raise _NoCallError

    def _take(self, kind: str) -> str:
        found, text = self._advance()
        if found != kind:
            raise _NoCallError
        return text

    def _advance(self) -> Token:
        token = self._next
        if token is None:
            raise _NoCallError
        self._next = next(self._tokens, None)
        return token


def _tokens(text: str) -> Iterator[Token]:
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise _NoCallError
        place = found.end()
        kind = found.lastgroup
        if kind is not None:
            is_text = kind in ("long", "double", "single")
            yield ("text", _ESCAPE.sub(_unescaped, found[kind])) if is_text else (kind, found[kind])


def _finite(number: float) -> float:
    if math.isinf(number):  # JSON has no such number
        raise _NoCallError
    return number


def _unescaped(found: re.Match[str]) -> str:
    what = found[1]
    if len(what) > 1:
        return chr(int(what[1:], 16))
    return _ESCAPED.get(what, found[0])
