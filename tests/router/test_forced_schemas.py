"""The schema that forced calls are held to: each tool's own, whatever it refers to and whatever others call theirs."""

import json

import jsonschema
import pytest

from pdmux_actor.executor.structured_output import FormCompiler
from router.errors import InvalidRequest
from router.openai.tools import FunctionName, FunctionTool, NamedFunction, tool_use

NAME = {"properties": {"a": {"$ref": "#/$defs/D"}}, "required": ["a"], "$defs": {"D": {"type": "string"}}}
NUMBER = {"properties": {"a": {"$ref": "#/$defs/D"}}, "required": ["a"], "$defs": {"D": {"type": "integer"}}}
FORMER = {"properties": {"a": {"$ref": "#/definitions/D"}}, "definitions": {"D": {"type": "integer"}}}
TREE = {"properties": {"a": {"type": "integer"}, "$ref": {"$ref": "#"}, "same": {"$ref": "#/properties/a"}}}
LISTS = {"properties": {"a": {"anyOf": [{"$ref": "#/$defs/D"}]}}, "$defs": {"D": {"items": {"type": "integer"}}}}


def forced(schemas, name: str | None):
    """`name` None: some call."""
    tools = [
        FunctionTool.model_validate({"type": "function", "function": {"name": of, "parameters": schema}})
        for of, schema in schemas.items()
    ]
    choice = "required" if name is None else NamedFunction(type="function", function=FunctionName(name=name))
    return tool_use(tools, choice, parallel=None).forced_output()


@pytest.mark.parametrize(
    ("schemas", "right", "wrong"),
    [
        ([NAME, NUMBER], [{"a": "x"}, {"a": 1}], [{"a": 1}, {"a": "x"}]),
        ([FORMER], [{"a": 1}], [{"a": "x"}]),
        ([TREE], [{"$ref": {"a": 1}, "same": 1}], [{"$ref": {"a": "x"}}]),
        ([LISTS], [{"a": [1]}], [{"a": ["x"]}]),
    ],
)
@pytest.mark.parametrize("is_named", [False, True])
def test_forced_output__schemas_with_references__each_call_follows_its_own(schemas, right, wrong, is_named) -> None:
    tools = {f"f{place}": {"type": "object", **schema} for place, schema in enumerate(schemas)}
    compiler = FormCompiler([bytes([byte]) for byte in range(256)], frozenset({256}), vocab_size=257)
    for place, name in enumerate(tools):
        form = forced(tools, name if is_named else None)
        validator = jsonschema.Draft202012Validator(json.loads(form.text))

        def answer(arguments, name=name):
            return arguments if is_named else [{"name": name, "parameters": arguments}]

        assert validator.is_valid(answer(right[place]))
        assert not validator.is_valid(answer(wrong[place]))
        compiler.constraint(form, 1, [0])  # raises if it cannot be kept to


@pytest.mark.parametrize("definitions", [[], None, "none", {"D": 5}])
@pytest.mark.parametrize("name", [None, "odd"])
def test_forced_output__definitions_that_are_none__are_refused_with_their_place(definitions, name) -> None:
    with pytest.raises(InvalidRequest, match="schema") as refused:
        forced({"even": {"type": "object"}, "odd": {"$defs": definitions}}, name)

    assert refused.value.param.startswith("tools[1].function.parameters.$defs")
