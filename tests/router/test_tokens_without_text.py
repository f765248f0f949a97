"""Tokens that have no text yet, or none at all, keep the pace of a stream: as chunks, and in what is measured."""

import json

import httpx
import pytest
from fake_unit import FakeUnit
from prometheus_client.parser import text_string_to_metric_families

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
