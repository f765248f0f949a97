"""Replies of a random model, from the client to the engine's process: calls of tools follow their schemas, what
ended a text is said as vLLM says it, and shown where that is asked for, and embeddings are transformers'.
"""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import jsonschema
import numpy as np
import openai
import pytest
import pytest_asyncio
import torch
from real_unit import MODEL, real_fleet
from transformers import AutoModel, AutoTokenizer

from pdmux_actor.serving.commands import EngineSettings

pytestmark = pytest.mark.asyncio(loop_scope="module")
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
TOKENS = 24
ENDPOINTS = {
    "/v1/completions": {"prompt": "Once upon a time"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(demo_checkpoints) -> AsyncIterator[str]:
    """The engine takes seconds to start: one fleet for all."""
    settings = EngineSettings(kind="torch_cpu", kv_pool_bytes=256 << 20, num_cores=2, dtype="float32")
    async with real_fleet(demo_checkpoints["demo-llama"], settings) as url:
        yield url


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


async def test_tools__random_model_that_must_call__calls_follow_their_schemas(url: str) -> None:
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


async def answer(http: httpx.AsyncClient, path: str, *, stream: bool, **extra) -> tuple[str, str, object, list[int]]:
    """Text, finish reason, stop reason and tokens of what a random model says greedily."""
    body = {"model": MODEL, "max_tokens": TOKENS, "temperature": 0, "return_token_ids": True, **ENDPOINTS[path]}
    reply = await http.post(path, json={**body, "stream": stream, **extra})
    assert reply.status_code == 200, reply.text
    if not stream:
        (choice,) = reply.json()["choices"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        return text, choice["finish_reason"], choice["stop_reason"], choice["token_ids"]
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    choices = [event["choices"][0] for event in events]
    text = "".join(c["text"] if "text" in c else c["delta"].get("content") or "" for c in choices)
    token_ids = [token_id for c in choices for token_id in c.get("token_ids") or ()]
    assert {c.get("stop_reason") for c in choices[:-1]} == {None}
    return text, choices[-1]["finish_reason"], choices[-1]["stop_reason"], token_ids


async def test_stop_reason__of_each_end__is_what_ended_the_text_and_can_be_part_of_it(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=100) as http:
        for path in ENDPOINTS:
            whole, finish, reason, token_ids = await answer(http, path, stream=False)
            assert (finish, reason, len(token_ids)) == ("length", None, TOKENS)
            string = whole[len(whole) // 2 :][:3]  # of several tokens
            before, _, _ = whole.partition(string)
            token = token_ids[TOKENS // 2]
            upto = token_ids[: token_ids.index(token) + 1]
            texts = [await detokenized(http, ids) for ids in (upto[:-1], upto)]
            for stream in (False, True):
                ended = await answer(http, path, stream=stream, stop=[string, "never"])
                assert ended[:3] == (before, "stop", string)
                for name in ("include_stop_str_in_output", "no_stop_trim"):
                    ended = await answer(http, path, stream=stream, stop=string, **{name: True})
                    assert ended[:3] == (before + string, "stop", string)
                at_token = {"stop_token_ids": [token]}
                ended = await answer(http, path, stream=stream, **at_token)
                assert ended == (texts[0], "stop", token, upto)
                ended = await answer(http, path, stream=stream, include_stop_str_in_output=True, **at_token)
                assert ended == (texts[1], "stop", token, upto)


async def detokenized(http: httpx.AsyncClient, token_ids: list[int]) -> str:
    reply = await http.post("/detokenize", json={"model": MODEL, "tokens": token_ids})
    return reply.json()["prompt"]


TEXTS = ["The capital of France is Paris.", "b", "long " * 60]


async def embedded(url: str, folder) -> list[np.ndarray]:
    """Unit vectors of TEXTS, which are the same when they are asked for again, and as token ids."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=250) as sdk:
        replies = [
            await sdk.embeddings.create(model=MODEL, input=given)
            for given in (TEXTS, TEXTS, [tokenizer(text).input_ids for text in TEXTS])
        ]
    vectors = [[np.array(entry.embedding) for entry in reply.data] for reply in replies]
    for again in vectors[1:]:
        assert [float(a @ b) for a, b in zip(vectors[0], again, strict=True)] == pytest.approx([1.0] * 3, abs=1e-5)
    assert [float(np.linalg.norm(vector)) for vector in vectors[0]] == pytest.approx([1.0] * 3, abs=1e-5)
    return vectors[0]


async def test_embeddings__of_a_real_engine__are_transformers(url: str, demo_checkpoints) -> None:
    folder = demo_checkpoints["demo-llama"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()

    vectors = await embedded(url, folder)

    for text, vector in zip(TEXTS, vectors, strict=True):
        with torch.inference_mode():
            state = network(torch.tensor([tokenizer(text).input_ids])).last_hidden_state[0, -1].numpy()
        assert float(vector @ state / np.linalg.norm(state)) > 0.9999


async def test_embeddings__of_a_simulated_unit__are_made_up_from_the_prompt(demo_checkpoints) -> None:
    folder = demo_checkpoints["demo-llama"]
    async with real_fleet(folder, EngineSettings(kind="simulated", kv_pool_bytes=256 << 20, num_cores=2)) as simulated:
        first, second, third = await embedded(simulated, folder)
    assert max(abs(float(first @ second)), abs(float(second @ third)), abs(float(first @ third))) < 0.9
