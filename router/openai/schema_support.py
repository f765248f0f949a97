"""Tells before anything is generated which JSON schemas outputs can be held to, and the place of what cannot."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from router.errors import InvalidRequest

MAX_DEPTH = 64
MAX_PROPERTIES = 1000  # of the whole schema; a form of several thousand takes seconds to compile
MAX_ENUM_VALUES = 1000

_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
# What grammars do not express, or xgrammar does not read: with `strict` it is refused, else outputs may break it.
_NOT_KEPT_TO = frozenset(
    {
        "contains", "dependencies", "dependentRequired", "dependentSchemas", "else", "if", "maxContains", "minContains",
        "multipleOf", "not", "then", "uniqueItems",
    }
)  # fmt: skip
_NO_JSON_FORMATS = frozenset({"json-pointer", "relative-json-pointer"})  # xgrammar lets a bare quote pass in them
_ONE_SCHEMA = ("items", "additionalProperties", "additionalItems", "unevaluatedItems", "unevaluatedProperties")
_MANY_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
# Beside these a schema's own type and properties are not read.
_ALONE = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")
_BESIDE = frozenset(
    {"type", "properties", "required", "items", "pattern", "minimum", "maximum", "minLength", "maxLength"}
)
_NO_KEYWORDS: Mapping[str, Any] = MappingProxyType({})


def check_schema(schema: object, place: str, *, strict: bool) -> None:
    """Raises InvalidRequest, whose `param` is the place of the keyword, as in `...schema.properties.age.multipleOf`."""
    properties = enum_values = 0
    for path, part, depth in parts_of(schema, place):
        if depth > MAX_DEPTH:
            _refuse(path[:200], f"the schema nests deeper than {MAX_DEPTH} levels; use $defs, or make it flatter")
        if not isinstance(part, dict):
            if not isinstance(part, bool):
                _refuse(path, "a schema must be an object or a boolean")
            continue
        _check_types(part, path)
        properties += len(part["properties"]) if isinstance(part.get("properties"), dict) else 0
        enum_values += len(part["enum"]) if isinstance(part.get("enum"), list) else 0
        if properties > MAX_PROPERTIES:
            _refuse(f"{path}.properties", f"the schema has more than {MAX_PROPERTIES} properties; ask for fewer")
        if enum_values > MAX_ENUM_VALUES:
            _refuse(f"{path}.enum", f"the schema has more than {MAX_ENUM_VALUES} enum values; ask for fewer")
        if strict:
            _check_strict(part, path)


def _check_types(part: Mapping[str, Any], path: str) -> None:
    kinds = part.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if not isinstance(kind, str) or kind not in _TYPES:
            _refuse(f"{path}.type", f"{str(kind)[:40]!r} is no type; use one of {', '.join(sorted(_TYPES))}")
    for keyword in _MANY_SCHEMAS:
        if keyword in part and not (isinstance(part[keyword], list) and part[keyword]):
            _refuse(f"{path}.{keyword}", "it must be a list of schemas")
    for keyword in _NAMED_SCHEMAS:
        if keyword in part and not isinstance(part[keyword], dict):
            _refuse(f"{path}.{keyword}", "it must be an object of schemas")
    reference = part.get("$ref")
    if reference is not None and not (isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))):
        _refuse(f"{path}.$ref", "only references into the same schema (#/...) are followed; put it under $defs")


def _check_strict(part: Mapping[str, Any], path: str) -> None:
    if names_no_json(part.get("format")):
        _refuse(f"{path}.format", "outputs cannot be held to it; use a pattern, or set strict to false")
    if "propertyNames" in part and "properties" in part:
        _refuse(f"{path}.propertyNames", "it is not kept to beside properties; leave it out, or set strict to false")
    for keyword in _NOT_KEPT_TO & part.keys():
        if part[keyword] is not False:
            _refuse(f"{path}.{keyword}", "outputs cannot be held to this keyword; leave it out, or set strict to false")
    if isinstance(part.get("allOf"), list) and len(part["allOf"]) > 1:
        _refuse(
            f"{path}.allOf", "outputs cannot be held to several schemas at once; merge them, or set strict to false"
        )
    if "pattern" in part and ("minLength" in part or "maxLength" in part):
        _refuse(f"{path}.pattern", "its lengths are not kept to beside it; put them into the pattern")
    for keyword in _ALONE:
        beside = (_BESIDE if keyword not in ("enum", "const") else _BESIDE - {"type"}) & part.keys()
        if keyword in part and beside:
            _refuse(
                f"{path}.{min(beside)}", f"it is not kept to beside {keyword}; put it inside, or set strict to false"
            )


def parts_of(schema: object, place: str) -> Iterator[tuple[str, object, int]]:
    """Yields every schema inside and itself, with place and depth; what is inside of one after it."""
    stack: list[tuple[str, object, int]] = [(place, schema, 0)]
    while stack:
        path, part, depth = stack.pop()
        yield path, part, depth
        keywords = part if isinstance(part, dict) else _NO_KEYWORDS
        stack += [(f"{path}.{keyword}", keywords[keyword], depth + 1) for keyword in _ONE_SCHEMA if keyword in keywords]
        for keyword in _MANY_SCHEMAS:
            many = keywords.get(keyword)
            if isinstance(many, list):
                stack += [(f"{path}.{keyword}[{i}]", inner, depth + 1) for i, inner in enumerate(many)]
        for keyword in _NAMED_SCHEMAS:
            named = keywords.get(keyword)
            if isinstance(named, dict):
                stack += [(f"{path}.{keyword}.{name[:60]}", inner, depth + 1) for name, inner in named.items()]


def names_no_json(form: object) -> bool:
    """Says of a `format` that what it lets pass may be no JSON."""
    return isinstance(form, str) and form in _NO_JSON_FORMATS


def with_parts(schema: dict[str, Any], change: Callable[[object], object]) -> dict[str, Any]:
    """Copies a schema that was looked at, the schemas inside it changed."""
    copy = dict(schema)
    for keyword in _ONE_SCHEMA:
        if keyword in copy:
            copy[keyword] = change(copy[keyword])
    for keyword in _MANY_SCHEMAS:
        if keyword in copy:
            copy[keyword] = [change(inner) for inner in copy[keyword]]
    for keyword in _NAMED_SCHEMAS:
        if keyword in copy:
            copy[keyword] = {name: change(inner) for name, inner in copy[keyword].items()}
    return copy


def moved(schema: object, root: str) -> object:
    """Copies a schema that was looked at, for a place inside another one: what it refers to lies below `root` there."""
    if not isinstance(schema, dict):
        return schema
    copy = with_parts(schema, lambda inner: moved(inner, root))
    if isinstance(copy.get("$ref"), str):
        copy["$ref"] = root + copy["$ref"].removeprefix("#")
    return copy


def _refuse(place: str, reason: str) -> None:
    raise InvalidRequest(f"Invalid {place!r}: {reason}.", param=place, code="invalid_value")
