"""Fifty JSON schemas as clients send them: nested, enums, arrays, unions, patterns, references; strings are bounded."""

from itertools import product

_NAME = {"type": "string", "maxLength": 6}
_COLOUR = {"enum": ["red", "green", "blue"]}
_WEIGHT = {"type": "integer", "minimum": 0, "maximum": 999}
_ISO_DAY = {"type": "string", "pattern": "^[0-9]{4}-[01][0-9]-[0-3][0-9]$"}


def record(optional=(), **properties):
    """An object of these properties, all but `optional` required."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def array(items, most=3, least=0):
    return {"type": "array", "items": items, "maxItems": most, "minItems": least}


_POINT = record(x=_WEIGHT, y=_WEIGHT)
_SHAPES = [
    record(kind={"const": "circle"}, radius=_WEIGHT),
    record(kind={"const": "square"}, side=_WEIGHT),
    record(kind={"const": "path"}, points=array(_POINT, 2)),
]

_PLAIN = [
    record(name=_NAME, age=_WEIGHT),
    record(name=_NAME, nick=_NAME, optional=("nick",)),
    record(ok={"type": "boolean"}, nothing={"type": "null"}),
    record(colour=_COLOUR, mixed={"enum": [1, "one", None, True, 2.5]}),
    record(version={"const": 3}, label={"const": 'quote " and \\ slash'}),
    record(day=_ISO_DAY, hex={"type": "string", "pattern": "^#[0-9a-f]{6}$"}),
    record(signed={"type": "integer", "minimum": -50, "maximum": 50}),
    record(umlaut={"enum": ["süß", "日本", "😀"]}),
    record(limits={"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 20}),
    _COLOUR,
    _NAME,
    array(_NAME, 4),
    array(_WEIGHT, 5, 5),
    {"type": "array", "prefixItems": [_COLOUR, _WEIGHT], "items": False, "minItems": 2},
    {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
    {"type": "object", "additionalProperties": False},
    {"type": "object", "properties": {"spaced key": _WEIGHT, 'q"q': _COLOUR}, "required": ["spaced key", 'q"q']},
]
_NESTED = [
    record(a=record(b=record(c=record(d=_COLOUR)))),
    record(people=array(record(name=_NAME, tags=array(_COLOUR, 2)), 2, 1)),
    record(matrix=array(array(_WEIGHT, 2, 2), 2, 2)),
    record(left=_POINT, right=_POINT, optional=("right",)),
]
_UNIONS = [
    {"anyOf": [_NAME, _WEIGHT, {"type": "null"}]},
    record(value={"anyOf": [_WEIGHT, _POINT]}),
    {"oneOf": _SHAPES},
    record(shapes=array({"anyOf": _SHAPES}, 2, 1)),
    {"allOf": [record(only=_COLOUR)]},
]
_REFERENCES = [
    {"$defs": {"P": _POINT}, **record(start={"$ref": "#/$defs/P"}, end={"$ref": "#/$defs/P"})},
    {"definitions": {"C": _COLOUR}, **record(colours=array({"$ref": "#/definitions/C"}, 3))},
    {
        "$defs": {"Node": record(value=_WEIGHT, next={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Node"}]})},
        "$ref": "#/$defs/Node",
    },
    {"$defs": {"T": record(t=_COLOUR, kids=array({"$ref": "#/$defs/T"}, 1))}, "$ref": "#/$defs/T"},
]
_COMBINED = [
    record(items=array(inner, most), state=state)
    for inner, most, state in product(
        [
            _POINT,
            _COLOUR,
            {"anyOf": [_ISO_DAY, {"type": "null"}]},
            record(n=_NAME, optional=("n",)),
            {"oneOf": _SHAPES},
        ],
        [1, 2],
        [_COLOUR, {"type": "boolean"}],
    )
]
SCHEMAS = [*_PLAIN, *_NESTED, *_UNIONS, *_REFERENCES, *_COMBINED]
assert len(SCHEMAS) == 50, len(SCHEMAS)
