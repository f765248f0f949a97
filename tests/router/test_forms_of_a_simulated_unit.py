"""A simulated fleet keeps to forms: what a client tests against it gets is valid, and ends."""

import asyncio
import json
import re

import jsonschema
import openai
import pytest
from json_schemas import SCHEMAS
from real_unit import MODEL, real_fleet

from pdmux_actor.models.random_checkpoint import DEMO_SHAPES, write_random_checkpoint
from pdmux_actor.serving.commands import EngineSettings

ASK = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}},
    {"type": "function", "function": {"name": "time"}},
]
NAMED = {"type": "function", "function": {"name": "weather"}}
FORMS = [
    ({"choice": ["yes", "süß"]}, lambda text: text in ("yes", "süß")),
    ({"regex": r"[a-c]{2,5}@\d+(\.de|\.org)"}, re.compile(r"[a-c]{2,5}@\d+(\.de|\.org)").fullmatch),
    ({"regex": r"\w+ (is|was) [^ ]+!"}, re.compile(r"\w+ (is|was) [^ ]+!").fullmatch),
    ({"grammar": 'root ::= "(" root ")" | "x"'}, re.compile(r"\(*x\)*").fullmatch),
]


@pytest.fixture(scope="module", params=["tokenizer of the checkpoint", "shape only"])
def folder(request, tmp_path_factory):
    """With a tokenizer and config.json; or only the latter."""
    made = tmp_path_factory.mktemp("simulated") / "model"
    write_random_checkpoint(made, DEMO_SHAPES["demo-llama"], 0)
    for file in made.iterdir() if request.param == "shape only" else ():
        if file.name != "config.json":
            file.unlink()
    return made


async def test_simulated_unit__forms_of_every_kind__are_followed(folder) -> None:
    async with real_fleet(folder, EngineSettings(kind="simulated", kv_pool_bytes=256 << 20, num_cores=2)) as url:
        sdk = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=250)

        async def ask(**body):
            reply = await sdk.chat.completions.create(model=MODEL, messages=ASK, **{"max_tokens": 400, **body})
            return reply.choices[0]

        formats = [{"type": "json_schema", "json_schema": {"name": "x", "schema": schema}} for schema in SCHEMAS]
        written = await asyncio.gather(*[ask(response_format=one) for one in formats])
        followed = await asyncio.gather(*[ask(extra_body={"structured_outputs": form}) for form, _ in FORMS])
        forced = [await ask(tools=TOOLS, tool_choice=choice) for choice in ("required", NAMED)]
        free = await ask(tools=TOOLS, max_tokens=20)
        plain = await ask(max_tokens=20)
        await sdk.close()

    for choice, schema in zip(written, SCHEMAS, strict=True):
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), schema, cls=jsonschema.Draft202012Validator)
    for choice, (form, is_valid) in zip(followed, FORMS, strict=True):
        assert choice.finish_reason == "stop", form
        assert is_valid(choice.message.content), (form, choice.message.content)
    for choice in forced:
        (call,) = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls"
        if call.function.name == "weather":
            jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
    assert forced[1].message.tool_calls[0].function.name == "weather"
    assert (free.finish_reason, free.message.content) == ("length", plain.message.content)  # nothing makes it call
