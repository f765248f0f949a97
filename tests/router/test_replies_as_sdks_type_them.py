"""Every document and event of a reply is one of the types of OpenAI's and Anthropic's SDKs, which do not check them."""

import json
from pathlib import Path

import httpx
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from fake_unit import FakeUnit, write_byte_tokenizer
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from test_tools import CALL, HERMES, SCHEMA

MODEL = "demo/bytes"
SAID = "<think>\nLook it up.\n</think>\n\nOne moment.\n" + CALL % "Paris"
TOOL = {"name": "weather", "description": "Now", "parameters": SCHEMA}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "tools": [{"type": "function", "function": TOOL}]}
RESPONSE = {"input": "Hi", "tools": [{"type": "function", "strict": False, **TOOL}]}
CUSTOM = {"type": "custom", "name": "weather", "description": "Now"}
MESSAGES = {
    "max_tokens": 500,
    "messages": CHAT["messages"],
    "tools": [{"name": "weather", "input_schema": SCHEMA}],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
}
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


@pytest.fixture
async def post(serve, tmp_path: Path):
    """`post(path, body)` is the text of what a model that thinks, speaks and calls answers."""
    served = await serve(FakeUnit(says=lambda _: SAID))
    served.folder = write_byte_tokenizer(tmp_path / "hermes", chat_template=HERMES)
    served.show(*served.units)

    async def answer(path: str, body: dict[str, object] | None = None) -> str:
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
            sent = client.get(path) if body is None else client.post(path, json={"model": MODEL, **body})
            reply = await sent
        assert reply.status_code == 200, reply.text
        return reply.text

    return answer


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/chat/completions", CHAT, ChatCompletion),
        ("/v1/chat/completions", {**CHAT, "n": 2, "logprobs": True, "top_logprobs": 2}, ChatCompletion),
        ("/v1/chat/completions", {**CHAT, "max_tokens": 3}, ChatCompletion),
        ("/v1/completions", {"prompt": "Hi"}, Completion),
        ("/v1/responses", RESPONSE, Response),
        (
            "/v1/responses",
            {**RESPONSE, **LOGPROBS, "text": {"verbosity": "low"}, "reasoning": {"effort": "low"}},
            Response,
        ),
        ("/v1/responses", {**RESPONSE, "tools": [CUSTOM], "max_output_tokens": 16}, Response),
        ("/v1/responses", {**RESPONSE, "background": True}, Response),
        ("/v1/messages", MESSAGES, Message),
        ("/v1/messages", {**MESSAGES, "max_tokens": 3}, Message),
        ("/v1/messages", {**MESSAGES, "stop_sequences": ["moment"]}, Message),
        ("/v1/messages/count_tokens", {"messages": CHAT["messages"]}, MessageTokensCount),
        ("/v1/embeddings", {"input": ["a", "b"]}, CreateEmbeddingResponse),
        (f"/v1/models/{MODEL}", None, Model),
    ],
)
async def test_document__is_of_the_sdks_type(post, path, body, kind) -> None:
    TypeAdapter(kind).validate_json(await post(path, body), strict=True)


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}}, ChatCompletionChunk),
        ("/v1/chat/completions", {**CHAT, "n": 2, "logprobs": True, "top_logprobs": 2}, ChatCompletionChunk),
        ("/v1/responses", RESPONSE, ResponseStreamEvent),
        ("/v1/responses", {**RESPONSE, **LOGPROBS}, ResponseStreamEvent),
        ("/v1/responses", {**RESPONSE, "tools": [CUSTOM]}, ResponseStreamEvent),
        ("/v1/responses", {**RESPONSE, "max_output_tokens": 16}, ResponseStreamEvent),
        ("/v1/responses", {**RESPONSE, "background": True}, ResponseStreamEvent),
        ("/v1/messages", MESSAGES, RawMessageStreamEvent),
        ("/v1/messages", {**MESSAGES, "max_tokens": 3}, RawMessageStreamEvent),
    ],
)
async def test_event__of_a_stream__is_of_the_sdks_type(post, path, body, kind) -> None:
    lines = (await post(path, {**body, "stream": True})).splitlines()
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ") and line != "data: [DONE]"]
    kinds = TypeAdapter(kind)
    numbers = []
    for event in events:
        kinds.validate_json(event, strict=True)
        numbers.append(json.loads(event).get("sequence_number"))

    assert len(events) > 3
    assert numbers == (list(range(len(events))) if path == "/v1/responses" else [None] * len(events))
