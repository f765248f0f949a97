"""Tokens that have no text yet, or none at all, keep the pace of a stream: as chunks, and in what is measured."""

import json

import httpx
import pytest
from fake_unit import FakeUnit, write_byte_tokenizer
from prometheus_client.parser import text_string_to_metric_families
from test_tools import CALL, HERMES, WEATHER

MODEL = "demo/bytes"
TOKENS = 8


def of_halves(text: str = "ü" * TOKENS, **settings) -> FakeUnit:
    """Each token of what it says is a byte, so that characters take several."""
    return FakeUnit(says=lambda _: text, **settings)


async def streamed(url: str, path: str, **body) -> list[dict]:
    body = {"model": MODEL, "max_tokens": TOKENS, "stream": True, **body}
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        reply = await http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_completion__characters_of_two_tokens__a_chunk_for_each_token(serve) -> None:
    served = await serve(of_halves())
    chunks = await streamed(served.url, "/v1/completions", prompt="x")

    assert [c["choices"][0]["text"] for c in chunks] == ["", "ü"] * (TOKENS // 2)
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (TOKENS - 1) + ["length"]


async def test_chat__characters_of_two_tokens__a_chunk_for_each_token(serve) -> None:
    served = await serve(of_halves())
    opening, *chunks = await streamed(served.url, "/v1/chat/completions", messages=[{"role": "user", "content": "x"}])

    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert opening["choices"][0]["delta"]["role"] == "assistant"
    assert [d["content"] for d in deltas if d] == ["", "ü"] * (TOKENS // 2)


@pytest.mark.parametrize("stop", [[], ["never"]], ids=["no stop string", "stop string"])
async def test_usage__of_every_chunk__counts_what_is_shown(serve, stop) -> None:
    served = await serve(of_halves())
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await streamed(served.url, "/v1/completions", prompt="x", stop=stop, stream_options=options)

    assert [c["usage"]["completion_tokens"] for c in chunks] == [0, 2, 2, 4, 4, 6, 6, 8, 8]


async def test_metrics__characters_of_two_tokens__a_gap_for_each_token(serve) -> None:
    served = await serve(of_halves())
    await streamed(served.url, "/v1/completions", prompt="x")

    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        exposition = (await http.get("/metrics")).text
    families = text_string_to_metric_families(exposition)
    counts = {s.name: s.value for family in families for s in family.samples if s.name.endswith("_count")}
    assert counts["muxfleet_inter_token_latency_seconds_count"] == TOKENS - 1
    assert counts["muxfleet_time_to_first_token_seconds_count"] == 1


async def test_unit_dies_between_two_halves__text_is_whole_and_counted_once(serve) -> None:
    fuse = [3]
    served = await serve(of_halves(unit_id="unit-a", fuse=fuse), of_halves(unit_id="unit-b", fuse=fuse))
    chunks = await streamed(served.url, "/v1/completions", prompt="x", stream_options={"include_usage": True})

    assert "".join(c["choices"][0]["text"] for c in chunks if c["choices"]) == "ü" * (TOKENS // 2)
    assert chunks[-1]["usage"]["completion_tokens"] == TOKENS


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a\n\nb", ["a", "", "", "\n\nb"]),  # whitespace before a part of its own would be left out
        ("üü", ["", "ü", "", "ü"]),
        ("a<b", ["a", "", "<b"]),  # a call may begin there
    ],
)
async def test_chat__of_a_reply_that_is_read__a_chunk_for_each_token(serve, tmp_path, text, told) -> None:
    chunks = await read_for_calls(await serve(of_halves(text)), tmp_path)

    assert [d["content"] for d in chunks if d] == told


async def test_chat__calls_a_tool__nothing_is_told_before_the_call_is_whole(serve, tmp_path) -> None:
    chunks = await read_for_calls(await serve(of_halves("a" + CALL % "Paris")), tmp_path)

    begin = len("<tool_call>")  # until it is there, it may be text
    assert [d["content"] for d in chunks[: begin + 1]] == ["a"] + [""] * begin
    (call,) = [d["tool_calls"][0]["function"] for d in chunks if "tool_calls" in d]
    assert json.loads(call["arguments"]) == {"city": "Paris"}
    assert len(chunks) == begin + 3, "the call and the end follow"


async def test_chat__thinks__tokens_without_text_are_of_the_reasoning(serve, tmp_path) -> None:
    chunks = await read_for_calls(await serve(of_halves("<think>ü</think>ok")), tmp_path)

    told = [(d.get("reasoning_content"), d.get("content")) for d in chunks if d]
    before = [(None, "")] * len("<think")  # it may be text
    thought = [("", None), ("", None), ("ü", None)] + [("", None)] * len("</think>")
    assert told == [*before, *thought, (None, "o"), (None, "k")]
    assert all(d["reasoning"] == d["reasoning_content"] for d in chunks if "reasoning_content" in d)


async def read_for_calls(served, folder) -> list[dict]:
    served.folder = write_byte_tokenizer(folder / "hermes", chat_template=HERMES)
    served.show(*served.units)
    asked = {"messages": [{"role": "user", "content": "x"}], "tools": [WEATHER], "max_tokens": 500}
    _, *chunks = await streamed(served.url, "/v1/chat/completions", **asked)
    return [chunk["choices"][0]["delta"] for chunk in chunks]


async def test_prompt_logprobs__of_a_reply_that_is_read__are_told_though_it_begins_with_half_a_character(
    serve, tmp_path
) -> None:
    served = await serve(of_halves())
    served.folder = write_byte_tokenizer(tmp_path / "hermes", chat_template=HERMES)
    served.show(*served.units)
    body = {"model": MODEL, "max_tokens": TOKENS, "prompt_logprobs": 0, "tools": [WEATHER]}
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/chat/completions", json=body | {"messages": [{"role": "user", "content": "x"}]})

    told = reply.json()
    assert len(told["prompt_logprobs"]) == told["usage"]["prompt_tokens"]
    assert told["choices"][0]["message"]["content"] == "ü" * (TOKENS // 2)
