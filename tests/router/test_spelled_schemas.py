"""Schemas that say little of arrays and objects: what may follow is what they mean, and always JSON."""

import json

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


LIST, MAP = {"type": "array"}, {"type": "object"}


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
    ],
)
def test_form__schema_that_leaves_something_open__takes_what_it_means(schema, right, wrong) -> None:
    assert {text: is_taken(schema, text) for text in [*right, *wrong]} == dict.fromkeys(right, True) | dict.fromkeys(
        wrong, False
    )


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
