"""Sampling and forms of outputs, from the body of a request to what a unit is asked for."""

import json

import httpx
import pytest
from fake_unit import FakeUnit

from pdmux_actor.messages import LogitsProcessing, Slo, StructuredKind
from router.errors import InvalidRequest
from router.openai.chat import ChatCompletionRequest
from router.openai.schema_support import MAX_DEPTH, check_schema
from router.serving.prompts import bad_word_tokens
from router.view import ModelCard

MODEL = "demo/bytes"
CARD = ModelCard(model=MODEL, source="s", revision=None, slo=Slo(ttft_s=1.0, tbt_s=0.1), created_s=0)
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


async def asked_of_the_unit(serve, path="/v1/chat/completions", **extra):
    unit = FakeUnit(constrains=True)
    served = await serve(unit)
    body = {**CHAT, **extra}
    if path == "/v1/completions":
        body["prompt"] = "hi"
        del body["messages"]
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        reply = await client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return [request.sampling for request in unit.requests]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_sampling__more_top_k_than_any_vocabulary__fits_what_devices_count_in(serve, path: str) -> None:
    """A launch with a number beyond 32 bits fails with all sequences that are in it, and SGLang with its process."""
    (sampling,) = await asked_of_the_unit(serve, path, top_k=2**31)

    assert sampling.top_k == 2**31 - 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_sampling__all_of_it__reaches_the_unit(serve, path: str) -> None:
    sampling, second = await asked_of_the_unit(
        serve,
        path,
        presence_penalty=0.5,
        frequency_penalty=-0.25,
        repetition_penalty=1.2,
        min_p=0.05,
        logit_bias={"7": 5, "9": -100.0},
        stop_token_ids=[3, 4, 3],
        bad_words=["ab"],
        n=2,
    )

    assert sampling.processing == LogitsProcessing(
        logit_bias=((7, 5.0), (9, -100.0)),
        repetition_penalty=1.2,
        frequency_penalty=-0.25,
        presence_penalty=0.5,
        bad_words=sampling.processing.bad_words,
        min_p=0.05,
    )
    assert sampling.processing.bad_words
    assert sampling.stop_token_ids == (3, 4)
    assert second.processing == sampling.processing


async def test_bad_words__entry_that_is_no_token__is_refused_and_named() -> None:
    class Wordless:
        async def encode(self, card: ModelCard, text: str, **_: object) -> list[int]:
            return [7] if text.strip() == "word" else []

    body = ChatCompletionRequest.model_validate({**CHAT, "bad_words": ["word", "\u00ad"]})
    with pytest.raises(InvalidRequest) as refused:
        await bad_word_tokens(body, CARD, Wordless())

    assert refused.value.param == "bad_words[1]"


async def test_sampling__values_that_change_nothing__cost_the_unit_nothing(serve) -> None:
    (sampling,) = await asked_of_the_unit(
        serve, presence_penalty=0, frequency_penalty=0.0, repetition_penalty=1, min_p=0, logit_bias={}, bad_words=[]
    )

    assert sampling.processing is None


@pytest.mark.parametrize(
    ("extra", "kind", "text", "param"),
    [
        ({"structured_outputs": {"regex": "a+"}}, StructuredKind.REGEX, "a+", "structured_outputs"),
        ({"regex": "a+"}, StructuredKind.REGEX, "a+", "regex"),
        ({"ebnf": 'root ::= "a"'}, StructuredKind.GRAMMAR, 'root ::= "a"', "ebnf"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, StructuredKind.CHOICE, '["a", "b"]', "structured_outputs"),
        ({"structured_outputs": {"grammar": "root ::= x"}}, StructuredKind.GRAMMAR, "root ::= x", "structured_outputs"),
        ({"structured_outputs": {"json": {"type": "null"}}}, StructuredKind.JSON_SCHEMA, '{"type":"null"}', None),
        ({"structured_outputs": {"json_object": True}}, StructuredKind.JSON_SCHEMA, '{"type":"object"}', None),
        ({"guided_json": '{"type": "null"}'}, StructuredKind.JSON_SCHEMA, '{"type":"null"}', "guided_json"),
        ({"guided_regex": "b"}, StructuredKind.REGEX, "b", "guided_regex"),
        ({"guided_choice": ["c"]}, StructuredKind.CHOICE, '["c"]', "guided_choice"),
        ({"guided_grammar": "g"}, StructuredKind.GRAMMAR, "g", "guided_grammar"),
    ],
)
async def test_form__of_each_kind__reaches_the_unit_and_nothing_lengthens_it(serve, extra, kind, text, param) -> None:
    (sampling,) = await asked_of_the_unit(serve, **extra, min_tokens=2, ignore_eos=True)

    form = sampling.structured_output
    assert (form.kind, form.text, form.param) == (kind, text, param or "structured_outputs")
    assert (sampling.min_tokens, sampling.ignore_eos) == (0, False)


async def test_parameter__misspelt__400_asks_what_was_meant(serve) -> None:
    served = await serve(FakeUnit())
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        reply = await client.post("/v1/chat/completions", json={**CHAT, "frequency_penality": 1})

    message = "Unrecognized request argument supplied: frequency_penality; did you mean frequency_penalty?"
    assert reply.status_code == 400
    assert reply.json()["error"]["message"] == message


def deep(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "strict", "place", "reason"),
    [
        ({"type": "poem"}, False, "s.type", "'poem' is no type"),
        ({"properties": {"a": {"anyOf": [{"type": 5}]}}}, False, "s.properties.a.anyOf[0].type", "is no type"),
        ({"anyOf": []}, False, "s.anyOf", "list of schemas"),
        ({"properties": []}, False, "s.properties", "object of schemas"),
        ({"items": "x"}, False, "s.items", "object or a boolean"),
        ({"$ref": "http://x/y"}, False, "s.$ref", "same schema"),
        (deep(MAX_DEPTH + 1), False, "s" + ".items" * (MAX_DEPTH + 1), "deeper than 64"),
        ({"properties": {f"p{i}": {} for i in range(1001)}}, False, "s.properties", "1000 properties"),
        ({"enum": list(range(1001))}, False, "s.enum", "1000 enum values"),
        ({"items": {"multipleOf": 5}}, True, "s.items.multipleOf", "cannot be held"),
        ({"not": {}}, True, "s.not", "cannot be held"),
        ({"allOf": [{}, {}]}, True, "s.allOf", "merge them"),
        ({"pattern": "a", "maxLength": 3}, True, "s.pattern", "lengths"),
        ({"anyOf": [{}], "properties": {}}, True, "s.properties", "beside anyOf"),
    ],
)
def test_schema__outputs_cannot_be_held_to_it__names_the_keyword(schema, strict, place, reason) -> None:
    with pytest.raises(InvalidRequest, match=reason) as refused:
        check_schema(schema, "s", strict=strict)

    assert refused.value.param == place[:200]


def test_schema__not_strict__keywords_that_are_not_kept_to_pass() -> None:
    check_schema({"type": "array", "uniqueItems": True, "not": {"const": []}}, "s", strict=False)
    check_schema({"type": "array", "uniqueItems": False, "items": True}, "s", strict=True)
    check_schema({"$ref": "#/$defs/a", "description": "x", "$defs": {"a": {"const": 1}}}, "s", strict=True)


async def test_response_format__strict_schema_not_kept_to__400_names_the_keyword(serve) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 2}}}
    response_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    served = await serve(FakeUnit(constrains=True))
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        reply = await client.post("/v1/chat/completions", json={**CHAT, "response_format": response_format})

    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "response_format.json_schema.schema.properties.a.multipleOf"
    assert json.loads(reply.request.content)["response_format"] == response_format
