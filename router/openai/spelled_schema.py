"""Says in a JSON schema what it leaves open, where a grammar would take what is not said for what must not be."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from router.openai.plain_references import make_references_plain
from router.openai.schema_support import names_no_json, parts_of, with_parts
from router.text.schema_reference import referred

# Beside one of these, xgrammar has arrays and objects of which nothing else is said be empty.
_OF_ARRAYS = frozenset({"contains", "maxContains", "maxItems", "minContains", "minItems", "uniqueItems"})
_OF_OBJECTS = frozenset({"maxProperties", "minProperties", "required"})
_ITEMS = frozenset({"items", "prefixItems", "unevaluatedItems"})
_PROPERTIES = frozenset(
    {"additionalProperties", "patternProperties", "properties", "propertyNames", "unevaluatedProperties"}
)


def spelled_out(schema: object) -> object:
    """Copies a schema that was looked at. Its arrays and objects hold anything unless it says what; formats of strings
    for which xgrammar lets text pass that is no JSON are left out; alternatives that exclude each other do so by
    themselves where they can.

    >>> spelled_out({"type": "array", "maxItems": 3})
    {'type': 'array', 'maxItems': 3, 'items': {}}
    >>> spelled_out({"type": "object", "properties": {}})
    {'type': 'object', 'properties': {}}
    """
    copy = _spelled(schema)
    if isinstance(copy, dict):
        make_references_plain(copy)
        tell_apart(copy)
    return copy


def _spelled(schema: object) -> object:
    if not isinstance(schema, dict):
        return schema
    copy = {key: value for key, value in schema.items() if not (key == "format" and names_no_json(value))}
    kinds = copy.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "array" in kinds and _OF_ARRAYS & copy.keys() and not _ITEMS & copy.keys():
        copy["items"] = {}
    if "object" in kinds and _OF_OBJECTS & copy.keys() and not _PROPERTIES & copy.keys():
        copy["additionalProperties"] = True
    return with_parts(copy, _spelled)


_DEFINITIONS = ("#/$defs/", "#/definitions/")
_ANY_OF_THEM = ("null", "boolean")  # kinds of which no keyword of these alternatives lets some values pass only
_OF_PARTS = frozenset({"$ref", "allOf", "anyOf", "oneOf", "items", "prefixItems", "properties", "patternProperties"})

Schema = dict[str, Any]


def tell_apart(schema: Schema) -> None:
    """Makes alternatives of `oneOf` exclude each other: a grammar lets what is in several of them pass.

    Changes a copy that `with_parts` made. A property of which each alternative has values of its own becomes
    required in all: without it an object may be in several. Values of lists, null and booleans that are in several
    are taken out. Other alternatives stay as they are.

    >>> pets = {"oneOf": [{"properties": {"kind": {"const": kind}}} for kind in ("cat", "dog")]}
    >>> tell_apart(pets)
    >>> [pet["required"] for pet in pets["oneOf"]]
    [['kind'], ['kind']]
    """
    for _, part, _ in parts_of(schema, ""):
        if not isinstance(part, dict) or not isinstance(part.get("oneOf"), list):
            continue
        alternatives = part["oneOf"]
        meant = [_meant(alternative, schema) for alternative in alternatives]
        known = [one for one in meant if one is not None]
        if len(known) < max(2, len(meant)):
            continue
        discriminator = _discriminator(known, schema)
        if discriminator is not None:
            for one in known:
                one["required"] = [*dict.fromkeys([*one.get("required", ()), discriminator])]
        elif not any(_OF_PARTS & one.keys() for one in known):
            part["oneOf"] = _without_shared_values(known) or alternatives


def _meant(alternative: object, root: Schema) -> Schema | None:
    """None: it is not told, or no copy."""
    if isinstance(alternative, dict) and isinstance(reference := alternative.get("$ref"), str):
        is_copied = reference.startswith(_DEFINITIONS) and reference.count("/") == 2
        alternative = referred(reference, root) if is_copied else None
    return alternative if isinstance(alternative, dict) and "$ref" not in alternative else None


def _discriminator(alternatives: Sequence[Schema], root: Schema) -> str | None:
    """Finds a property that no two of them can have with the same value."""
    for name in alternatives[0].get("properties", {}):
        counts: Counter[str] = Counter()
        for alternative in alternatives:
            values = _values(alternative.get("properties", {}).get(name), root)
            if values is None:
                break
            counts.update(values)
        else:
            if max(counts.values(), default=0) == 1:
                return str(name)
    return None


def _values(schema: object, root: Schema) -> set[str] | None:
    """Returns the values that it lets pass, as texts. None: they are not listed."""
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        schema = referred(schema["$ref"], root)
    if not isinstance(schema, dict):
        return None
    listed = _listed(schema)
    return None if listed is None else {_as_text(value) for value in listed}


def _listed(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum")
    return listed if isinstance(listed, list) else None


def _as_text(value: object) -> str:
    """Names it as JSON does that knows one kind of number."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _without_shared_values(alternatives: Sequence[Schema]) -> list[Schema]:
    """Empty: nothing would be left."""
    listed = [_listed(one) for one in alternatives]
    if all(values is not None for values in listed):
        counts = Counter(text for values in listed for text in {_as_text(value) for value in values or ()})
        own = [[value for value in values or () if counts[_as_text(value)] == 1] for values in listed]
        plain = [{key: value for key, value in one.items() if key != "const"} for one in alternatives]
        return [{**one, "enum": values} for one, values in zip(plain, own, strict=True) if values]
    if any(values is not None or "type" not in one for values, one in zip(listed, alternatives, strict=True)):
        return []
    kinds = [one["type"] if isinstance(one["type"], list) else [one["type"]] for one in alternatives]
    counts = Counter(kind for several in kinds for kind in set(several))
    if all(counts[kind] == 1 for kind in _ANY_OF_THEM if kind in counts):
        return []
    left = [[kind for kind in several if kind not in _ANY_OF_THEM or counts[kind] == 1] for several in kinds]
    return [{**one, "type": several} for one, several in zip(alternatives, left, strict=True) if several]
