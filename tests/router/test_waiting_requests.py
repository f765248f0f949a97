"""Requests that wait for their turn end when waiting has become useless."""

import asyncio
import json

import httpx
import pytest
from fake_unit import FakeUnit, eventually
from fleet_values import is_idle
from served_gateway import ServedGateway

from router.limits import GatewayLimits

MODEL = "demo/bytes"


async def waits_for_its_turn(serve) -> tuple[ServedGateway, FakeUnit]:
    """A fleet whose one unit cannot be reached for now: requests are let in, and queue."""
    unit = FakeUnit()
    served = await serve(unit, limits=GatewayLimits(hold_s=600))
    await served.gateway._tokenizers.of(served.gateway.card(MODEL))
    served.gateway.scheduler.set_unreachable({unit.unit_id})
    return served, unit


async def until_queued(served: ServedGateway, number: int) -> None:
    await eventually(lambda: len(served.gateway.scheduler.admission.waiting()) == number)


@pytest.mark.parametrize(("asked", "status"), [({"max_tokens": 100}, 400), ({"max_tokens": 8}, 200), ({}, 200)])
async def test_waiting__no_unit_takes_so_many_tokens_any_more__is_answered_at_once(serve, asked, status) -> None:
    served, unit = await waits_for_its_turn(serve)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        waiting = asyncio.create_task(http.post("/v1/completions", json={"model": MODEL, "prompt": "x" * 8, **asked}))
        await until_queued(served, 1)
        served.gateway.view._max_model_lens.clear()  # a minute has gone by since units took more
        unit.max_model_len = 32
        served.show(unit)
        async with asyncio.timeout(30):
            reply = await waiting

    assert reply.status_code == status
    if status == 400:
        error = reply.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert "length is 32 tokens. However, you requested 108 tokens (8 in the prompt, 100" in error["message"]
    assert is_idle(served.gateway.scheduler)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_waiting__gateway_ends__is_told_to_come_again_also_with_several_choices(
    serve, n: int, stream: bool
) -> None:
    served, _ = await waits_for_its_turn(serve)
    body = {"model": MODEL, "prompt": "x", "n": n, "stream": stream}
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        waiting = asyncio.create_task(http.post("/v1/completions", json=body))
        await until_queued(served, n)
        served.gateway._room.close()
        async with asyncio.timeout(30):
            reply = await waiting
            late = await http.post("/v1/completions", json=body)

    for answer in (reply, late):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_capacity")
        assert "This gateway ends" in answer.json()["error"]["message"]
        assert answer.headers["retry-after"] == "1"
    assert is_idle(served.gateway.scheduler)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_answer_under_way__gateway_ends__its_end_is_an_error_that_says_to_come_again(
    serve, n: int, stream: bool
) -> None:
    """A stream that was cut would be the network's fault to its client; some take that for the end of the answer."""
    unit = FakeUnit(token_gap_s=0.02)
    served = await serve(unit)
    body = {"model": MODEL, "prompt": "x", "n": n, "stream": stream, "max_tokens": 2000}
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http, asyncio.timeout(30):
        asking = asyncio.create_task(http.post("/v1/completions", json=body))
        await eventually(lambda: len(unit.requests) == n)
        await asyncio.sleep(0.2)
        served.gateway.end_answers()
        reply = await asking
        late = await http.post("/v1/completions", json=body)

    events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    assert (reply.status_code, late.status_code) == (200 if stream else 503, 503)
    assert not stream or len(events) > 1
    error = json.loads(events[-1] if stream else reply.text)["error"]
    assert (error["code"], error["message"]) == (
        "no_capacity",
        "This gateway ends, and its requests with it; retry in 1 s.",
    )
    assert is_idle(served.gateway.scheduler)


async def test_close__client_has_left__is_no_error(serve) -> None:
    served, _ = await waits_for_its_turn(serve)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        waiting = asyncio.create_task(http.post("/v1/completions", json={"model": MODEL, "prompt": "x", "n": 2}))
        await until_queued(served, 2)
        waiting.cancel()
        served.gateway._room.close()
        await eventually(lambda: is_idle(served.gateway.scheduler))


async def test_waiting__unit_can_be_reached_again__is_answered_without_another_view(
    serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, unit = await waits_for_its_turn(serve)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        waiting = asyncio.create_task(http.post("/v1/completions", json={"model": MODEL, "prompt": "x"}))
        await until_queued(served, 1)
        monkeypatch.setattr(served.gateway._pool, "unreachable", lambda: frozenset({unit.endpoint}))
        served.gateway.note_unreachable()
        await asyncio.sleep(0)
        assert len(served.gateway.scheduler.admission.waiting()) == 1
        monkeypatch.setattr(served.gateway._pool, "unreachable", frozenset)
        served.gateway.note_unreachable()
        async with asyncio.timeout(10):
            reply = await waiting

    assert reply.status_code == 200
