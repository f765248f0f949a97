"""What ended a text, said as vLLM says it, and shown where that is asked for: from the body to the engine's process."""

import json

import httpx
import pytest
from real_unit import MODEL, real_fleet

from pdmux_actor.serving.commands import EngineSettings
from router.openai.body import parse_body
from router.openai.chat import ChatCompletionRequest

TOKENS = 24
ENDPOINTS = {
    "/v1/completions": {"prompt": "Once upon a time"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
}


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


async def test_stop_reason__of_each_end__is_what_ended_the_text_and_can_be_part_of_it(demo_checkpoints) -> None:
    """The engine takes seconds to start: one fleet for all."""
    settings = EngineSettings(kind="torch_cpu", kv_pool_bytes=64 << 20, num_cores=1, dtype="float32")
    async with (
        real_fleet(demo_checkpoints["demo-llama"], settings) as url,
        httpx.AsyncClient(base_url=url, timeout=100) as http,
    ):
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


@pytest.mark.parametrize(
    ("extra", "shows"),
    [
        ({}, False),
        ({"include_stop_str_in_output": False, "no_stop_trim": False}, False),
        ({"include_stop_str_in_output": True}, True),
        ({"no_stop_trim": True}, True),
    ],
)
def test_shows_stop__either_name__is_asked_of_the_unit(extra, shows) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **extra}

    assert parse_body(json.dumps(body).encode(), ChatCompletionRequest).shows_stop is shows
