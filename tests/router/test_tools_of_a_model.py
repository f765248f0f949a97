"""Tools of a random model under the mask, from the SDK to the engine's process: arguments always follow the schema."""

import asyncio
import json

import jsonschema
import openai
from real_unit import MODEL, real_fleet

from pdmux_actor.serving.commands import EngineSettings

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
NAMED = {"type": "function", "function": {"name": "book_flight"}}


async def calls_of(sdk, *, stream: bool, **body) -> tuple[list[tuple[str, str]], str]:
    """Names and arguments of the calls, and why the reply ended."""
    body = {"model": MODEL, "messages": ASK, "tools": TOOLS, "max_tokens": 800, **body}
    if not stream:
        (choice,) = (await sdk.chat.completions.create(**body)).choices
        return [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()], choice.finish_reason
    calls: list[tuple[str, str]] = []
    async for chunk in await sdk.chat.completions.create(stream=True, **body):
        for call in chunk.choices[0].delta.tool_calls or ():
            assert call.index == len(calls)
            calls.append((call.function.name, call.function.arguments))
    return calls, chunk.choices[0].finish_reason


async def test_tools__random_model_that_must_call__calls_follow_their_schemas(demo_checkpoints) -> None:
    """The engine takes seconds to start: one fleet for all."""
    folder = demo_checkpoints["demo-llama"]
    settings = EngineSettings(kind="torch_cpu", kv_pool_bytes=256 << 20, num_cores=2, dtype="float32")
    async with real_fleet(folder, settings) as url:
        sdk = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=250)
        forced = await asyncio.gather(
            *[
                calls_of(sdk, stream=stream, seed=seed, **choice)
                for choice in ({"tool_choice": "required", "parallel_tool_calls": False}, {"tool_choice": NAMED})
                for seed, stream in ((1, False), (2, True))
            ]
        )
        await sdk.close()

    for calls, finish in forced:
        assert finish == "tool_calls"
        check(calls)
    assert [calls[0][0] for calls, _ in forced[2:]] == ["book_flight"] * 2


def check(calls) -> None:
    ((name, arguments),) = calls
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])
