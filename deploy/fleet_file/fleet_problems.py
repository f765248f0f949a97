"""Turns what pydantic found into lines a user can act on."""

import difflib
import json
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from deploy.fleet_file.setting_types import PATTERN_REMEDIES
from deploy.fleet_file.yaml_source import KeyPath, YamlSource, path_text

_MAX_VALUE_CHARS = 60

_REMEDIES: Mapping[str, str] = {
    "missing": "required, but missing",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be a string (put it in quotes)",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "must be one of: {expected}",
    "too_short": "needs at least {min_length} item",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "byte_size": "must be a size such as 256MiB",
    "byte_size_unit": "unknown unit {unit!r}; write a size such as 256MiB",
}
_NO_SECTION = ("model_type", "model_attributes_type")
_SURELY = 0.75  # so alike that the other keys need not be told


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`value` is None where there is none to show."""

    path: KeyPath
    value: object
    remedy: str

    def line(self, source: YamlSource) -> str:
        where = path_text(self.path) or "the file"
        shown = "" if self.value is None else f" = {_shown(self.value)}"
        return f"{source.place(self.path)}: {where}{shown}: {self.remedy}"


def problems_of(error: ValidationError, root: type[BaseModel]) -> Iterator[Problem]:
    details = error.errors(include_url=False)
    for detail in details:
        path: KeyPath = tuple(detail["loc"])
        kind = detail["type"]
        if kind == "too_short" and any(d["loc"][: len(path)] == path and d is not detail for d in details):
            continue  # pydantic counts the valid items only; their own problems are listed
        if kind == "extra_forbidden":
            yield Problem(path=path, value=detail["input"], remedy=_unknown_key(path, root))
        elif kind == "missing":
            yield Problem(path=path, value=None, remedy=_REMEDIES["missing"])
        elif kind == "string_pattern_mismatch":
            yield Problem(path=path, value=detail["input"], remedy=_pattern_remedy(detail["ctx"]["pattern"]))
        elif kind in _NO_SECTION and path and detail["input"] is not None:
            yield Problem(
                path=path, value=detail["input"], remedy=f"{_REMEDIES[kind]}: {', '.join(_keys_at(path, root))}"
            )
        else:
            template = _REMEDIES.get(kind)
            remedy = template.format(**_context(detail.get("ctx"))) if template else str(detail["msg"])
            yield Problem(path=path, value=detail["input"], remedy=remedy)


def _context(ctx: Mapping[str, Any] | None) -> dict[str, Any]:
    return {k: v.replace("'", "") if isinstance(v, str) else v for k, v in (ctx or {}).items()}


def _pattern_remedy(pattern: str) -> str:
    return PATTERN_REMEDIES.get(pattern, f"must match {pattern}")


def _unknown_key(path: KeyPath, root: type[BaseModel]) -> str:
    known = _keys_at(path[:-1], root)
    near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.6)
    if near and difflib.SequenceMatcher(None, str(path[-1]), near[0]).ratio() >= _SURELY:
        return f"unknown key; did you mean {near[0]}?"
    maybe = f"; did you mean {near[0]}?" if near else ";"
    return f"unknown key{maybe} known here: {', '.join(known)}"


def _keys_at(path: KeyPath, root: type[BaseModel]) -> Sequence[str]:
    section = root
    for part in path:
        if isinstance(part, str):
            section = _section_of(section.model_fields[part].annotation)
    return tuple(section.model_fields)


def _section_of(annotation: object) -> type[BaseModel]:
    """The section class inside `Section`, `tuple[Section, ...]` or `Section | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(_section_of(a) for a in typing.get_args(annotation) if a is not Ellipsis)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 3] + "..."


def repeated(values: list[str], section: str, key: str) -> list[Problem]:
    first: dict[str, int] = {}
    problems = []
    for i, value in enumerate(values):
        if value in first:
            remedy = f"also {section}[{first[value]}].{key}; choose another"
            problems.append(Problem(path=(section, i, key), value=value, remedy=remedy))
        first.setdefault(value, i)
    return problems
