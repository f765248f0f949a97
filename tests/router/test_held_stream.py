"""Streams that wait for their model are told how far it is, and official clients do not notice."""

import asyncio
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec
import openai
import pytest
from fake_unit import SPEECH, FakeUnit, eventually, fleet_view
from served_gateway import InlineText, ServedGateway, running

from deploy.inspection.chat_stream import ChatPiece, chat_pieces
from pdmux_actor.lease import LoadProgress, LoadStage, ModelPhase
from router.http.app import create_app
from router.http.streaming import ClientDisconnected
from router.limits import GatewayLimits
from router.serving.gateway import Gateway
from router.view import FleetView, ModelLoadTimes

MODEL = "demo/bytes"
HELLO = [{"role": "user", "content": "hello"}]
TEXT = SPEECH.encode()[:20].decode()
LIMITS = GatewayLimits(hold_s=30, tell_wait_s=0.02)
STREAMS = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 20},
    "/v1/completions": {"prompt": "hello", "max_tokens": 20},
    "/v1/responses": {"input": "hello", "max_output_tokens": 20},
    "/v1/messages": {"messages": HELLO, "max_tokens": 20},
}


def loading_view(served, *, takes_s: float | None, share: float | None = None) -> FleetView:
    """Loads took `takes_s` before."""
    unit = served.units[0]
    shown = fleet_view(unit, source=served.folder, phase=ModelPhase.LOADING)
    progress = None
    if share is not None:
        progress = LoadProgress(stage=LoadStage.READING, done_bytes=int(share * 100), total_bytes=100)
    report = shown.units[0].report
    statuses = tuple(replace(s, progress=progress) for s in report.models)
    units = (replace(shown.units[0], report=replace(report, models=statuses)),)
    times = () if takes_s is None else (ModelLoadTimes(model=MODEL, loads=1, seconds=takes_s),)
    return replace(shown, units=units, load_times=times)


@pytest.fixture
async def cold(serve):
    served = await serve(FakeUnit(), limits=LIMITS)
    served.gateway.update_view(loading_view(served, takes_s=25.0))
    return served


async def ready_soon(served) -> None:
    await asyncio.sleep(0.2)
    served.show(served.units[0])


@pytest.mark.parametrize("path", STREAMS)
async def test_stream__model_loads__comments_say_how_far_then_it_is_served(path: str, cold) -> None:
    body = {"model": MODEL, "stream": True, "temperature": 0, **STREAMS[path]}
    lines = []
    async with (
        httpx.AsyncClient(base_url=cold.url, timeout=60) as http,
        http.stream("POST", path, json=body) as reply,
    ):
        async for line in reply.aiter_lines():
            if not lines:
                cold.show(cold.units[0])
            lines.append(line)

    assert reply.status_code == 200
    assert re.fullmatch(r": loading demo/bytes, ready in about \d+ s", lines[0])
    told = [line for line in lines if line.startswith(": x-muxfleet-")]
    assert ": x-muxfleet-unit: unit-a" in told
    assert any(line.startswith(": x-muxfleet-cold-ms: ") for line in told)
    assert lines.index(told[0]) < next(i for i, line in enumerate(lines) if line.startswith("data: "))


async def test_muxfleet_chat__model_loads__is_told_how_far_then_gets_the_answer(cold) -> None:
    loop, settings = asyncio.get_running_loop(), {"max_tokens": 20, "temperature": 0}

    def pieces() -> list[ChatPiece]:
        told = []
        for piece in chat_pieces(cold.url, model=MODEL, messages=HELLO, settings=settings, timeout_s=60, api_key=None):
            if not told:
                loop.call_soon_threadsafe(cold.show, cold.units[0])
            told.append(piece)
        return told

    told = await asyncio.to_thread(pieces)

    assert told[0].loading.startswith("loading demo/bytes, ready in about ")
    assert "".join(piece.text for piece in told) == TEXT
    assert [piece.finish_reason for piece in told if piece.finish_reason] == ["length"]
    assert told[-1].tokens == 20


async def test_stream__no_unit_ever_had_the_model__the_wait_is_a_cold_start(tokenizer_folder: Path) -> None:
    body = {"model": MODEL, "stream": True, **STREAMS["/v1/chat/completions"]}
    gateway = Gateway(LIMITS, start_text=InlineText.start)
    async with FakeUnit() as unit, running(gateway) as url:
        served = ServedGateway(gateway, url, tokenizer_folder, [unit])
        gateway.update_view(loading_view(served, takes_s=25.0))
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            asked = asyncio.create_task(http.post("/v1/chat/completions", json=body))
            await eventually(lambda: any(m.held for m in gateway.demand_report().models))
            await asyncio.sleep(0.3)
            served.show(unit)
            lines = (await asked).text.splitlines()

    told = dict(line[2:].split(": ") for line in lines if line.startswith(": x-muxfleet-"))
    assert 300 <= float(told["x-muxfleet-cold-ms"]) <= float(told["x-muxfleet-queue-ms"])


async def test_sdks__model_loads__read_the_stream_as_any_other(cold) -> None:
    import anthropic  # a second or two, which processes that only collect this file are spared

    soon = asyncio.create_task(ready_soon(cold))
    asked = {"model": MODEL, "temperature": 0}
    async with (
        openai.AsyncOpenAI(base_url=f"{cold.url}/v1", api_key="x", max_retries=0) as of_openai,
        anthropic.AsyncAnthropic(base_url=cold.url, api_key="x", max_retries=0) as of_anthropic,
    ):

        async def chat() -> str:
            stream = await of_openai.chat.completions.create(**asked, messages=HELLO, max_tokens=20, stream=True)
            return "".join([c.choices[0].delta.content or "" async for c in stream])

        async def completion() -> str:
            stream = await of_openai.completions.create(**asked, prompt="hello", max_tokens=20, stream=True)
            return "".join([c.choices[0].text async for c in stream])

        async def response() -> str:
            stream = await of_openai.responses.create(**asked, input="hello", max_output_tokens=20, stream=True)
            return "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])

        async def message() -> str:
            async with of_anthropic.messages.stream(model=MODEL, messages=HELLO, max_tokens=20) as stream:
                return "".join([text async for text in stream.text_stream])

        said = await asyncio.gather(chat(), completion(), response(), message())
    await soon

    assert said[:3] == [TEXT] * 3
    assert len(said[3].encode()) >= 17  # it has no temperature here


@pytest.mark.parametrize(
    ("takes_s", "hold_s"), [(None, 0.3), (60.0, 0.3)], ids=["nobody knows when", "later than it may wait"]
)
async def test_stream__will_not_be_ready_in_time__gets_the_error_as_its_status(serve, takes_s, hold_s) -> None:
    served = await serve(FakeUnit(), limits=replace(LIMITS, hold_s=hold_s))
    served.gateway.update_view(loading_view(served, takes_s=takes_s, share=None if takes_s else 0.43))
    body = {"model": MODEL, "stream": True, **STREAMS["/v1/chat/completions"]}
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/chat/completions", json=body)

    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "model_loading")
    assert reply.headers["x-muxfleet-load-stage"] == "loading"
    if takes_s is None:
        assert reply.headers["x-muxfleet-load-percent"] == "43"
        assert "loading demo/bytes 43 %" in reply.json()["error"]["message"]
    else:
        assert 30 < int(reply.headers["x-muxfleet-ready-in-s"]) <= 60
        assert 30 < int(reply.headers["retry-after"]) <= 60


@pytest.mark.parametrize(("path", "is_error"), [("/v1/chat/completions", "data: "), ("/v1/messages", "event: error")])
async def test_stream__model_does_not_come_after_all__ends_with_the_error(serve, path: str, is_error: str) -> None:
    served = await serve(FakeUnit(), limits=replace(LIMITS, hold_s=3.0))
    served.gateway.update_view(loading_view(served, takes_s=2.5))
    body = {"model": MODEL, "stream": True, **STREAMS[path]}
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post(path, json=body)

    lines = [line for line in reply.text.splitlines() if line and not line.startswith(":")]
    assert reply.status_code == 200
    assert lines[0].startswith(is_error)
    assert "is loading" in lines[-1]
    await eventually(lambda: served.gateway.receipts.told().last)
    assert served.gateway.receipts.told().last[0].error.startswith("The model 'demo/bytes' is loading")


async def test_client__leaves_while_it_is_told__waits_no_longer(cold) -> None:
    body = {"model": MODEL, "stream": True, **STREAMS["/v1/chat/completions"]}
    async with (
        httpx.AsyncClient(base_url=cold.url, timeout=60) as http,
        http.stream("POST", "/v1/chat/completions", json=body) as reply,
    ):
        assert (await anext(reply.aiter_lines())).startswith(": loading")
        (asked,) = cold.gateway.demand_report().models
        assert asked.held == 1
    await eventually(lambda: not cold.gateway.demand_report().models[0].held)


async def test_client__leaves_between_the_status_and_the_first_line__waits_no_longer(cold) -> None:
    body = msgspec.json.encode({"model": MODEL, "stream": True, **STREAMS["/v1/chat/completions"]})
    served = create_app(cold.gateway)
    received = [{"type": "http.request", "body": body, "more_body": False}]
    left = asyncio.Event()

    async def receive() -> dict:
        if received:
            return received.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
            left.set()
            await asyncio.sleep(60)  # a server whose client takes nothing more

    headers = [(b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "headers": headers,
        "query_string": b"",
        "client": ("127.0.0.1", 1),
    }
    with suppress(ClientDisconnected):
        await asyncio.wait_for(served({**scope, "app": served}, receive, send), 10)

    await eventually(lambda: not cold.gateway.demand_report().models[0].held, deadline_s=5)


async def test_stream__model_is_ready__has_no_comments(serve) -> None:
    served = await serve(FakeUnit(token_gap_s=0.01), limits=LIMITS)
    body = {"model": MODEL, "stream": True, **STREAMS["/v1/chat/completions"]}
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/chat/completions", json=body)

    assert reply.headers["x-muxfleet-unit"] == "unit-a"
    assert not [line for line in reply.text.splitlines() if line.startswith(":")]
