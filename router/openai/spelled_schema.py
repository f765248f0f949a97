"""Says in a JSON schema what it leaves open, where a grammar would take what is not said for what must not be."""

from router.openai.exclusive_alternatives import tell_apart
from router.openai.schema_support import names_no_json, with_parts

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
