"""Two thousand bodies that are not what the API takes, at every endpoint: each is answered, none as a fault of ours."""

import json
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import httpx
from batch_rig import settings as batch_settings
from fake_unit import FakeUnit
from served_gateway import InlineText, ServedGateway, running

from router.http.app import openapi_document
from router.serving.gateway import Gateway

MODEL = "demo/bytes"
BODIES = 2000
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
CALL = {"id": "c" * 9, "type": "function", "function": {"name": "f", "arguments": '{"a": "x"}'}}
CHAT: Mapping[str, Any] = {
    "model": MODEL,
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "s"}]},
        {"role": "user", "content": "hi", "name": "me"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "r"},
        {"role": "user", "content": "and?"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": "auto",
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
    "logit_bias": {"5": 1.0},
    "logprobs": True,
    "top_logprobs": 2,
    "stop": ["x"],
    "stream": False,
    "stream_options": {"include_usage": True},
    "n": 1,
    "seed": 1,
    "temperature": 0.5,
    "max_tokens": 4,
    "chat_template_kwargs": {},
    "metadata": {"a": "b"},
}
VALID: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {
        "model": MODEL, "prompt": ["a", "b"], "max_tokens": 3, "echo": True, "n": 2, "bad_words": ["x"], "min_p": 0.1,
        "structured_outputs": {"regex": "a+"}, "stop_token_ids": [3], "stream": True,
    },
    "/v1/embeddings": {
        "model": MODEL, "input": ["a", "b"], "encoding_format": "base64", "dimensions": 4, "add_special_tokens": True,
        "user": "u",
    },
    "/v1/rerank": {
        "model": MODEL, "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": True,
        "instruction": "i", "max_tokens_per_doc": 9, "user": "u",
    },
    "/v1/score": {"model": MODEL, "text_1": ["a", "b"], "text_2": ["c", "d"], "instruction": "i", "user": "u"},
    "/v1/responses": {
        "model": MODEL,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "o"},
        ],
        "tools": [{"type": "function", **FUNCTION}],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        "reasoning": {"effort": "low"},
        "max_output_tokens": 4,
        "previous_response_id": None,
        "stream": False,
    },
    "/v1/conversations": {
        "items": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
            {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "i"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "o"}]},
        ],
        "metadata": {"a": "b"},
    },
    "/v1/messages": {
        "model": MODEL, "max_tokens": 4, "system": [{"type": "text", "text": "s"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": "x"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "o"}]},
        ],
        "tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "auto"}, "stop_sequences": ["x"],
    },
}  # fmt: skip
ELSEWHERE: Mapping[str, Any] = {"model": MODEL, "input": "hi", "prompt": "hi", "messages": [], "tokens": [1, 2]}
JUNK = (
    None, True, -1, 0, 2**70, 1e308, "", "x" * 5000, "\x00\ud800", [], {}, [[]], [None], {"": None}, {"$ref": "#"},
    [[[[[[1]]]]]], {"type": "poem"}, "auto", 0.5, [{"role": "user"}], {"a": {"b": {"c": []}}}, -(2**63), "NaN",
)  # fmt: skip


def places(value: object) -> Iterator[Callable[[object], None]]:
    """Sets each value inside, one after the other."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(inside):
        yield lambda new, key=key: value.__setitem__(key, new)
        yield from places(inner)


def damaged(valid: Mapping[str, Any], chance: random.Random) -> bytes:
    body = json.loads(json.dumps(valid))
    for _ in range(chance.choice([1, 1, 2, 5])):
        chance.choice(list(places(body)))(deepcopy(chance.choice(JUNK)))
    if chance.random() < 0.2 and body:
        body[chance.choice([*body, "mesages", "", "\ud800", "a" * 300])] = deepcopy(chance.choice(JUNK))
    if chance.random() < 0.1:
        body = chance.choice([[body], None, 7, "text", {"": body}, {}])
    text = json.dumps(body).encode()
    match chance.randrange(6):
        case 0:
            return text[: chance.randrange(len(text) + 1)]
        case 1:
            place = chance.randrange(len(text))
            return text[:place] + bytes([chance.randrange(256)]) + text[place + 1 :]
        case 2:
            place = chance.randrange(len(text))
            return text[:place] + chance.choice([b"[" * 3000, b"\xff\xfe", b"NaN", b"1e999", b"\\u0000"]) + text[place:]
    return text


async def test_malformed_bodies__two_thousand_at_every_endpoint__no_fault_of_ours_and_no_traceback(
    tokenizer_folder, tmp_path, caplog
) -> None:
    chance = random.Random(18)
    paths = sorted(path for path, verbs in openapi_document()["paths"].items() if "post" in verbs and "{" not in path)
    gateway = Gateway(start_text=InlineText.start)
    statuses: dict[int, int] = {}
    with caplog.at_level(logging.ERROR):
        async with (
            FakeUnit(says=lambda _: "ok", constrains=True) as fake,
            running(gateway, batches=batch_settings(tmp_path / "kept")) as url,
            httpx.AsyncClient(base_url=url, timeout=60) as http,
        ):
            ServedGateway(gateway, url, tokenizer_folder, [fake]).show(fake)
            for number in range(BODIES):
                path = paths[number % len(paths)]
                body = damaged(VALID.get(path, ELSEWHERE), chance)
                reply = await http.post(path, content=body, headers={"content-type": "application/json"})
                statuses[reply.status_code] = statuses.get(reply.status_code, 0) + 1
                without_batches = reply.status_code == 503 and "batches_unavailable" in reply.text  # it keeps none
                assert reply.status_code < 500 or without_batches, (path, body, reply.text)
                assert "Traceback" not in reply.text, (path, body)
                if reply.status_code >= 400:
                    assert reply.json()["error"]["message"], (path, body)

    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert statuses[400] > BODIES / 2
    assert statuses.get(200, 0) > 10  # and some of what is odd is not wrong
