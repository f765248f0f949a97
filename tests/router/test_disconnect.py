"""A client that leaves frees its sequences, whatever the gateway is doing for it."""

import asyncio
import json
from collections.abc import Callable

import httpx
import pytest
from fake_unit import FakeUnit, eventually
from fleet_values import fleet, is_idle
from fleet_values import unit as fleet_unit

from router.http.app import create_app
from router.limits import GatewayLimits
from router.live_view import LiveView

MODEL = "demo/bytes"


async def send_and_hang_up(url: str, body: dict, *, once: Callable[[], object] | None = None) -> None:
    """Leaves at the first event of the answer, or `once` something is so."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    payload = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}"
    )
    writer.write(head.encode() + b"\r\n\r\n" + payload)
    await writer.drain()
    if once is None:
        await reader.readuntil(b"data: ")
    else:
        await eventually(once)
    writer.close()


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [True, False])
async def test_client__leaves_midway__every_choice_is_cancelled(serve, stream: bool, n: int) -> None:
    unit = FakeUnit(token_gap_s=0.02)
    served = await serve(unit)
    body = {"model": MODEL, "prompt": "x", "max_tokens": 2000, "stream": stream, "n": n}
    await served.gateway._tokenizers.of(served.gateway.card(MODEL))
    await send_and_hang_up(served.url, body, once=None if stream else lambda: len(unit.requests) == n)

    await eventually(lambda: len(unit.cancelled) == n)
    assert len(unit.requests) == n
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        assert 'status="499"} 1.0' in (await http.get("/metrics")).text


async def test_client__leaves_a_silent_stream__is_noticed_without_a_token(serve) -> None:
    unit = FakeUnit(token_gap_s=600)
    served = await serve(unit)
    await served.gateway._tokenizers.of(served.gateway.card(MODEL))
    body = {"model": MODEL, "prompt": "x", "max_tokens": 20, "stream": True}
    await send_and_hang_up(served.url, body, once=lambda: unit.requests)

    await eventually(lambda: len(unit.cancelled) == 1)


async def test_client__leaves_while_held__stops_waiting(serve) -> None:
    served = await serve(limits=GatewayLimits(hold_s=600))
    served.show()
    await served.gateway._tokenizers.of(served.gateway.card(MODEL))
    body = {"model": MODEL, "prompt": "x", "stream": True}
    await send_and_hang_up(served.url, body, once=lambda: any(m.held for m in served.gateway.demand_report().models))

    await eventually(lambda: is_idle(served.gateway.scheduler))
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        await eventually(lambda: b'status="499"} 1.0' in served.gateway.metrics.exposition())
        assert (await http.get("/health")).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_client__left_and_the_server_cancels_its_request__is_499_in_count_and_log(serve, caplog, stream) -> None:
    """Serve's direct ingress: the task of the request is cancelled, before its answer began or in its midst."""
    unit = FakeUnit(token_gap_s=0.02)
    served = await serve(unit)
    app = create_app(served.gateway)
    body = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 2000, "stream": stream}).encode()
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    sent: list[dict] = []
    bodies = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict:
        return bodies.pop() if bodies else await asyncio.Future()

    async def send(message: dict) -> None:
        sent.append(message)

    caplog.set_level("INFO", logger="muxfleet.requests")
    request = asyncio.create_task(app(scope, receive, send))
    await eventually(lambda: len(sent) > 2 if stream else unit.requests)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request

    found = served.gateway.metrics.exposition().decode()
    labels = f'endpoint="/v1/completions",model="{MODEL}",status='
    assert f'muxfleet_requests_total{{{labels}"499"}} 1.0' in found
    assert f'{labels}"0"' not in found
    assert [json.loads(r.message)["status"] for r in caplog.records if r.name == "muxfleet.requests"] == [499]
    await eventually(lambda: len(unit.cancelled) == 1)


async def test_held_request__unit_arrives__is_served(serve) -> None:
    unit = FakeUnit()
    served = await serve(unit, limits=GatewayLimits(hold_s=20))
    served.gateway.view._max_model_lens.clear()
    served.show()
    served.gateway.view._max_model_lens.clear()
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        asking = asyncio.create_task(
            http.post("/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 4})
        )
        await eventually(lambda: any(m.held for m in served.gateway.demand_report().models))
        served.show(unit)
        reply = await asking

    assert reply.status_code == 200


async def test_slow_stream__keep_alive_comments__come_between(serve) -> None:
    unit = FakeUnit(token_gap_s=0.3)
    served = await serve(unit, limits=GatewayLimits(keep_alive_s=0.05))
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        body = {"model": MODEL, "prompt": "x", "max_tokens": 3, "stream": True}
        reply = await http.post("/v1/completions", json=body)

    assert ": keep-alive\n\n" in reply.text
    assert reply.text.endswith("data: [DONE]\n\n")
    assert reply.headers["x-accel-buffering"] == "no"
    assert reply.headers["content-type"].startswith("text/event-stream")


async def test_long_request__quota_is_low_for_a_move__waits_for_it_to_rise_while_short_ones_pass(serve) -> None:
    unit = FakeUnit()
    served = await serve(unit, limits=GatewayLimits(hold_s=20))
    unit.max_model_len = 32
    served.show(unit)
    prompt = {"model": MODEL, "prompt": "x" * 100}
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        long = asyncio.create_task(http.post("/v1/completions", json=prompt | {"max_tokens": 4}))
        await eventually(lambda: any(m.held for m in served.gateway.demand_report().models))
        short = await http.post("/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 4})
        unlimited = await http.post("/v1/completions", json={"model": MODEL, "prompt": "x"})
        waited = not long.done()
        unit.max_model_len = 4096
        served.show(unit)
        answered = await long
        never = await http.post("/v1/completions", json=prompt | {"max_tokens": 5000})

    assert waited
    assert (short.status_code, answered.status_code, never.status_code) == (200, 200, 400)
    assert unlimited.json()["usage"]["completion_tokens"] <= 31, "as much as fits now"


def test_context_length__lower_for_more_than_a_minute__is_what_it_is() -> None:
    view = LiveView()

    def told(tokens: int, now_s: float) -> tuple[int, int]:
        view.update(fleet(fleet_unit("u", max_model_len=tokens)), now_s)
        context = view.context("m")
        assert context is not None
        return context.now, context.lately

    assert told(4096, 0.0) == (4096, 4096)
    assert told(32, 1.0) == (32, 4096)
    assert told(64, 59.0) == (64, 4096)
    assert told(64, 61.0) == (64, 64)
    assert told(128, 62.0) == (128, 128)
