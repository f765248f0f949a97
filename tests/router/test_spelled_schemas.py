"""Schemas that say little of arrays and objects: what may follow is what they mean, and always JSON."""

import json
import time

import numpy as np
import pytest

from pdmux_actor.errors import InvalidStructuredOutput
from pdmux_actor.executor.structured_output import FormCompiler
from router.errors import InvalidRequest
from router.openai.chat import ChatCompletionRequest

END = 256
COMPILER = FormCompiler([bytes([byte]) for byte in range(256)], frozenset({END}), vocab_size=257)


def form_of(schema, *, strict: bool = False):
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": strict}},
    }
    return ChatCompletionRequest.model_validate(body).structured_output


def is_taken(schema, text: str) -> bool:
    """Says whether the text is a whole output of the form."""
    token_ids = list(text.encode())
    try:
        constraint = COMPILER.constraint(form_of(schema), 0, token_ids)
    except InvalidStructuredOutput:
        return False
    words = np.zeros(COMPILER.num_words, dtype=np.int32)
    constraint.fill_mask(token_ids, words)
    return bool(np.unpackbits(words.view(np.uint8), bitorder="little")[END])


LIST, MAP, INTEGER = {"type": "array"}, {"type": "object"}, {"type": "integer"}


def referring(reference, definitions):
    return {**LIST, "items": {"$ref": reference}, "$defs": definitions}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (LIST | {"maxItems": 2}, ["[]", '["a", 1]'], ["[1, 2, 3]"]),
        (LIST | {"minItems": 1, "maxItems": 6}, ["[{}]"], ["[]"]),
        (LIST | {"uniqueItems": True}, ['["a"]'], []),
        ({"type": ["array", "null"], "maxItems": 1}, ["null", "[1]"], ["[1, 2]"]),
        ({"anyOf": [LIST | {"minItems": 1}, {"type": "null"}]}, ["null", "[1]"], ["[]"]),
        (MAP | {"minProperties": 1}, ['{"a": 1}'], ["{}"]),
        (MAP | {"maxProperties": 1}, ['{"a": 1}', "{}"], ['{"a": 1, "b": 2}']),
        (MAP | {"required": ["a"]}, ['{"a": 1}'], ["[]"]),
        (MAP | {"properties": {}}, ["{}"], ['{"a": 1}']),
        (MAP | {"properties": {"a": LIST | {"maxItems": 1}}, "required": ["a"]}, ['{"a": [1]}'], ['{"a": [1, 2]}']),
        ({"type": "string", "format": "json-pointer"}, ['"/a"'], ['"/a"b"']),
        (referring("#/$defs/a~1b", {"a/b": INTEGER}), ["[1]", "[1, 2]"], ['["a"]', "[[1]]"]),
        (referring("#/$defs/a~0b", {"a~b": INTEGER, "referred 0": {"type": "null"}}), ["[1]"], ["[null]"]),
        (referring("#/$defs/List%5Bint%5D", {"List[int]": LIST | {"items": INTEGER}}), ["[[1]]"], ["[1]"]),
        (referring("#/$defs/a%20b", {"a%20b": INTEGER}), ["[1]"], ['["a"]']),
        (referring("#/$defs/a/anyOf/1", {"a": {"anyOf": [{"type": "null"}, INTEGER]}}), ["[1]"], ["[null]"]),
        (referring("#/$defs/t~1t", {"t/t": {**LIST, "items": {"$ref": "#/$defs/t~1t"}}}), ["[[], [[]]]"], ["[1]"]),
        (
            {"anyOf": [{"type": "null"}, {**LIST, "items": {"$ref": "#/anyOf/1"}}]},  # zod-to-json-schema says so
            ["null", "[]", "[[[]]]"],
            ["[null]"],
        ),
    ],
)
def test_form__schema_that_leaves_something_open__takes_what_it_means(schema, right, wrong) -> None:
    assert {text: is_taken(schema, text) for text in [*right, *wrong]} == dict.fromkeys(right, True) | dict.fromkeys(
        wrong, False
    )


def test_form__many_references_to_much__takes_a_time_that_grows_with_the_schema() -> None:
    """Each names the whole in another way, and copied for each it would be a thousand times as large."""
    much = {"anyOf": [{"type": "string", "const": str(n)} for n in range(4_000)]}
    references = [{"$ref": f"#/items/anyOf/{n:0{width}d}/items"} for n in range(2, 62) for width in range(2, 9)]
    nested: dict[str, object] = much
    for _ in range(60):
        nested = LIST | {"items": nested}
    before_s = time.process_time()
    form = form_of(LIST | {"items": {"anyOf": [nested, nested, *(LIST | {"items": one} for one in references)]}})

    assert time.process_time() - before_s < 2
    assert len(form.text) < 1_500_000


@pytest.mark.parametrize("reference", ["#/$defs/b", "#/$defs/a/anyOf/7", "#/$defs/a/anyOf/x", "#/$defs/a~1b"])
def test_form__reference_to_what_is_not_there__is_named(reference) -> None:
    form = form_of(referring(reference, {"a": {"anyOf": [INTEGER]}}))
    with pytest.raises(InvalidStructuredOutput, match="Cannot find field"):
        COMPILER.constraint(form, 0, ())


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "string", "format": "json-pointer"}, "format"),
        (MAP | {"properties": {"A": {}}, "propertyNames": {"pattern": "^[a-z]+$"}}, "propertyNames"),
    ],
)
def test_strict__what_outputs_cannot_be_held_to__is_refused_with_its_place(schema, place) -> None:
    with pytest.raises(InvalidRequest) as refused:
        json.dumps(form_of(schema, strict=True).text)

    assert refused.value.param == f"response_format.json_schema.schema.{place}"
