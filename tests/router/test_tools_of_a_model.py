"""Tools of a trained model under the mask, from the SDK to the engine's process: arguments always follow the schema."""

import asyncio
import json

import jsonschema
import openai
import pytest
from real_unit import MODEL, real_fleet
from tokenizers import Tokenizer

from deploy.errors import DemoWeightsUnavailable
from deploy.local.demo_weights import demo_weights
from pdmux_actor.serving.commands import EngineSettings

pytestmark = [pytest.mark.weights, pytest.mark.slow]
BOOK = {
    "type": "object",
    "properties": {
        "from": {"type": "string", "pattern": "^[A-Z]{3}$"},
        "to": {"$ref": "#/$defs/airport"},
        "day": {"type": "string", "pattern": "^2026-[01][0-9]-[0-3][0-9]$"},
        "seats": {"type": "array", "items": {"enum": ["aisle", "window"]}, "minItems": 1, "maxItems": 3},
        "note": {"anyOf": [{"type": "string", "maxLength": 30}, {"type": "null"}]},
    },
    "required": ["from", "to", "day", "seats", "note"],
    "additionalProperties": False,
    "$defs": {"airport": {"type": "string", "pattern": "^[A-Z]{3}$"}},
}
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
SCHEMAS = {"book_flight": BOOK, "get_weather": WEATHER}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": schema, "strict": True}}
    for name, schema in SCHEMAS.items()
]
ASK = [{"role": "user", "content": "Book a flight from Berlin to Rome on the third of May, and tell me the weather."}]
BEFORE = {"id": "a" * 9, "type": "function"}
BEFORE["function"] = {"name": "get_weather", "arguments": '{"city": "Oslo", "days": 1}'}
# As the model was taught: what it begins with is a call.
BEGUN = [
    *ASK,
    {"role": "assistant", "content": None, "tool_calls": [BEFORE]},
    {"role": "tool", "tool_call_id": BEFORE["id"], "content": "Snow."},
    {"role": "user", "content": "And in Rome for three days? Call get_weather again, with <tool_call>."},
]
NAMED = {"type": "function", "function": {"name": "book_flight"}}


@pytest.fixture(scope="module")
def folder():
    try:
        return demo_weights(lambda num_bytes: None).llama
    except DemoWeightsUnavailable as error:
        pytest.skip(str(error))


async def message_of(sdk, *, stream: bool, **body) -> tuple[dict, str]:
    """The message with its calls, as a client puts it together, and why it ended."""
    body = {"model": MODEL, "max_tokens": 400, **body}
    if not stream:
        (choice,) = (await sdk.chat.completions.create(**body)).choices
        return choice.message.model_dump(), choice.finish_reason
    async with sdk.chat.completions.stream(**body) as events:
        async for _ in events:
            pass
        (choice,) = (await events.get_final_completion()).choices
    return choice.message.model_dump(), choice.finish_reason


def opening_tokens(folder) -> list[int]:
    return Tokenizer.from_file(str(folder / "tokenizer.json")).encode("<tool_call>").ids


def check(calls) -> None:
    for call in calls:
        arguments = json.loads(call["function"]["arguments"])
        jsonschema.validate(arguments, SCHEMAS[call["function"]["name"]])


async def test_tools__trained_model_by_every_choice__calls_follow_their_schemas(folder) -> None:
    """The engine takes seconds to start: one fleet for all."""
    settings = EngineSettings(kind="torch_cpu", kv_pool_bytes=256 << 20, num_cores=2, dtype="float32")
    async with real_fleet(folder, settings) as url:
        sdk = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=250)
        asked = [
            message_of(sdk, stream=stream, messages=ASK, tools=TOOLS, tool_choice=choice, seed=seed, **more)
            for choice, more in (("required", {}), ("required", {"parallel_tool_calls": False}), (NAMED, {}))
            for seed, stream in ((1, False), (2, True))
        ]
        forced = await asyncio.gather(*asked)
        # The bias makes it begin a call at once; what comes then is the mask's.
        opening = {"logit_bias": {str(token_id): 100 for token_id in opening_tokens(folder)}}
        free = await asyncio.gather(
            *[
                message_of(sdk, stream=stream, messages=BEGUN, tools=TOOLS, seed=seed, temperature=0.7, **more)
                for more in ({}, opening | {"parallel_tool_calls": False})
                for seed, stream in ((1, False), (2, True), (3, False))
            ]
        )
        await sdk.close()

    for message, finish in forced:
        assert finish == "tool_calls"
        check(message["tool_calls"])
    assert all(len(message["tool_calls"]) == 1 for message, _ in forced[2:])
    assert [m["tool_calls"][0]["function"]["name"] for m, _ in forced[4:]] == ["book_flight"] * 2
    called = [message["tool_calls"] for message, _ in free if message["tool_calls"]]
    assert called, free
    for calls in called:
        check(calls)
    assert all(len(message["tool_calls"] or ()) <= 1 for message, _ in free[3:])
