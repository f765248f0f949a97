"""`oneOf`: an output is in one alternative only, where the alternatives can be told apart."""

import copy
import json

import jsonschema
import pytest
from test_spelled_schemas import form_of, is_taken


def kind(value, *, required: bool = False, **properties):
    known = {"kind": {"const": value}, **properties}
    return {"type": "object", "properties": known, **({"required": ["kind"]} if required else {})}


PETS = {
    "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
    "$defs": {
        "cat": kind("cat", lives={"type": "integer"}),
        "dog": kind("dog", friend={"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}]}),
    },
}
EITHER = {"oneOf": [kind("a", x={"type": "integer"}), {"type": "object", "properties": {"kind": {"enum": ["b", "c"]}}}]}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (
            PETS,
            ['{"kind": "cat"}', '{"kind": "dog", "friend": {"kind": "cat", "lives": 9}}'],
            ["{}", '{"lives": 1}', '{"kind": "dog", "friend": {}}'],
        ),
        (EITHER, ['{"kind": "a", "x": 1}', '{"kind": "c"}'], ["{}"]),
        ({"oneOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}, ['"a"', '"c"'], ['"b"']),
        ({"oneOf": [{"const": 1}, {"enum": [1.0, 2]}, {"const": 3}]}, ["2", "3"], ["1", "1.0"]),
        ({"oneOf": [{"type": ["string", "null"]}, {"type": ["integer", "null"]}]}, ['"a"', "7"], ["null"]),
        ({"oneOf": [{"type": "string"}, {"type": "boolean"}]}, ['"a"', "true"], ["1"]),
    ],
)
def test_one_of__alternatives_that_can_be_told_apart__one_holds(schema, right, wrong) -> None:
    before = copy.deepcopy(schema)

    assert {text: is_taken(schema, text) for text in [*right, *wrong]} == dict.fromkeys(right, True) | dict.fromkeys(
        wrong, False
    )
    assert schema == before
    valid = jsonschema.Draft202012Validator(schema).is_valid
    assert [valid(json.loads(text)) for text in right] == [True] * len(right)
    assert [valid(json.loads(text)) for text in wrong] == [False] * len(wrong)


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"oneOf": [{"type": "string"}, {"enum": ["a"]}]},
        {"oneOf": [{"const": "a"}, {"const": "a"}]},
        {"oneOf": [{"$ref": "#/properties/x"}, {"$ref": "#/$defs/none"}], "properties": {"x": {"type": "string"}}},
        {"oneOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"a": {"const": "b"}}}]},
    ],
)
def test_one_of__alternatives_that_cannot__stay(schema) -> None:
    assert json.loads(form_of(schema).text) == schema
