"""Keys, rates, limits, metrics and the request log hold for the APIs of agents as for the chat."""

import json
import logging

import httpx
import pytest
from fake_unit import FakeUnit

from router.access.api_keys import KeyEntry, KeyRing, make_key
from router.limits import GatewayLimits

MODEL = "demo/bytes"
BODIES = {
    "/v1/messages": {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    "/v1/responses": {"model": MODEL, "input": "hi", "max_output_tokens": 4},
}


@pytest.mark.parametrize("path", BODIES)
async def test_agents__keys_and_rates__hold(serve, path) -> None:
    served = await serve(FakeUnit())
    key = make_key()
    entry = KeyEntry(key_id=key.key_id, name="ann", hash=key.hash, requests_per_minute=1)
    served.gateway.access.set_keys(KeyRing([entry]))
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        headers = {"x-api-key": key.secret}
        replies = [
            await http.post(path, json=BODIES[path]),
            await http.post(path, json=BODIES[path], headers=headers),
            await http.post(path, json=BODIES[path], headers=headers),
        ]

    assert [reply.status_code for reply in replies] == [401, 200, 429]
    assert replies[1].headers["x-ratelimit-limit-requests"] == "1"
    assert "retry-after" in replies[2].headers


@pytest.mark.parametrize("path", BODIES)
async def test_agents__large_body_wrong_type_or_no_json__are_refused(serve, path) -> None:
    served = await serve(FakeUnit(), limits=GatewayLimits(max_body_bytes=1000))
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        large = await http.post(path, json={**BODIES[path], "padding": "x" * 2000})
        text = await http.post(path, content="hi", headers={"content-type": "text/plain"})
        broken = await http.post(path, content="{", headers={"content-type": "application/json"})
        deep = await http.post(path, content="[" * 900, headers={"content-type": "application/json"})

    assert [reply.status_code for reply in (large, text, broken, deep)] == [413, 415, 400, 400]


@pytest.mark.parametrize("path", BODIES)
async def test_agents__metrics_and_log__name_the_endpoint(serve, path, caplog) -> None:
    served = await serve(FakeUnit())
    with caplog.at_level(logging.INFO, logger="muxfleet.requests"):
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
            reply = await http.post(path, json=BODIES[path])
            metrics = (await http.get("/metrics")).text

    assert reply.status_code == 200
    assert reply.headers["x-muxfleet-unit"] == "unit-a"
    line = json.loads(next(r.getMessage() for r in caplog.records if r.name == "muxfleet.requests"))
    assert (line["endpoint"], line["model"], line["output_tokens"]) == (path, MODEL, 4)
    assert f'endpoint="{path}",model="{MODEL}",status="200"}} 1.0' in metrics
