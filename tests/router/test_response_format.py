"""`response_format` through the gateway: who is asked, with what, and what the client hears of a refusal."""

import json
from collections import Counter

import openai
import pytest
from fake_unit import SPEECH, FakeUnit

from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.frames import Delta
from router.openai import output_form, tools

MODEL = "demo/bytes"
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "boolean"}}, "required": ["b", "a"]}
OTHER = {"name": "other", "parameters": SCHEMA}
FORMAT = {"type": "json_schema", "json_schema": {"name": "pair", "schema": SCHEMA, "strict": True}}


def client_of(served):
    return openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)


@pytest.mark.parametrize(
    ("response_format", "expected"), [(FORMAT, SCHEMA), ({"type": "json_object"}, {"type": "object"})]
)
async def test_response_format__one_unit_of_two_can__goes_there_in_the_clients_order(
    serve, response_format, expected
) -> None:
    plain, able = FakeUnit(unit_id="plain"), FakeUnit(unit_id="able", constrains=True)
    async with client_of(await serve(plain, able)) as client:
        for _ in range(4):
            await client.chat.completions.create(
                model=MODEL, messages=HELLO, max_tokens=8, response_format=response_format
            )

    assert plain.requests == []
    schemas = [json.loads(request.sampling.structured_output.text) for request in able.requests]
    assert schemas == [expected] * 4
    assert list(schemas[0].get("properties", {})) == list(expected.get("properties", {}))


async def test_response_format__no_unit_can__400_with_the_remedy(serve) -> None:
    unit = FakeUnit()
    async with client_of(await serve(unit)) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.completions.create(model=MODEL, prompt="hi", extra_body={"response_format": FORMAT})

    assert refused.value.param == "response_format"
    assert refused.value.code == "unsupported_parameter"
    assert "a pool that can" in refused.value.body["message"]
    assert unit.requests == []


@pytest.mark.parametrize("stream", [False, True])
async def test_response_format__engine_cannot_take_the_schema__400_names_the_parameter(serve, stream) -> None:
    refusal = Delta(0, 0, "", [], finish=FinishReason.ERROR, error="no such type: poem", param="response_format")
    async with client_of(await serve(FakeUnit(constrains=True, fail=lambda _: refusal))) as client:
        with pytest.raises(openai.BadRequestError, match="no such type: poem") as refused:
            await client.chat.completions.create(
                model=MODEL, messages=HELLO, response_format=FORMAT, stream=stream, max_tokens=8
            )

    assert refused.value.param == "response_format"


async def test_response_format__unit_dies__goes_on_where_outputs_can_be_constrained(serve) -> None:
    fuse = [5]
    plain = FakeUnit(unit_id="plain")
    able = [FakeUnit(unit_id=f"able-{i}", constrains=True, fuse=fuse) for i in range(2)]
    async with client_of(await serve(plain, *able)) as client:
        reply = await client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=12, temperature=0, response_format=FORMAT
        )

    assert reply.choices[0].message.content == SPEECH.encode()[:12].decode()
    assert plain.requests == []
    assert [len(unit.requests) for unit in able] == [1, 1]


async def test_chat__with_a_schema_and_tools__reads_each_of_them_once(serve, monkeypatch) -> None:
    read = Counter()

    def counted(name, function):
        return lambda *args, **kwargs: read.update([name]) or function(*args, **kwargs)

    monkeypatch.setattr(output_form, "check_schema", counted("schema", output_form.check_schema))
    monkeypatch.setattr(tools, "_plain", counted("tool", tools._plain))
    tool = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
    async with client_of(await serve(FakeUnit(constrains=True))) as client:
        await client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=8, response_format=FORMAT, tools=[tool, tool | {"function": OTHER}]
        )

    assert read == {"schema": 1, "tool": 2}
