"""A client that keeps its connection and reads nothing more is let go, whatever the stream was about to write."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from router.http.streaming import ClientDisconnected, EventStream, EventStyle

EVENT, LAST, KEEP_ALIVE = b"data: {}\n\n", b"data: [DONE]\n\n", b": keep-alive\n\n"


async def one_event() -> AsyncGenerator[bytes, None]:
    yield EVENT


async def one_event_and_silence() -> AsyncGenerator[bytes, None]:
    yield EVENT
    await asyncio.Future()


@pytest.mark.parametrize(
    ("events", "stuck_at"), [(one_event, EVENT), (one_event, LAST), (one_event_and_silence, KEEP_ALIVE)]
)
async def test_stream__server_has_no_room_for_what_is_written__client_is_let_go(events, stuck_at, caplog) -> None:
    sent: list[bytes] = []

    async def send(message: dict) -> None:
        sent.append(message.get("body", b""))
        if sent[-1] == stuck_at:
            await asyncio.Future()

    async def receive() -> dict:
        return await asyncio.Future()

    stream = EventStream(
        events(), request_id="r", keep_alive_s=0.02, write_timeout_s=0.1, headers={}, style=EventStyle()
    )
    async with asyncio.timeout(60):
        with pytest.raises(ClientDisconnected):
            await stream({"type": "http"}, receive, send)

    assert sent[-1] == stuck_at
    assert [record.message for record in caplog.records] == ["a client reads nothing; let go"]


async def test_stream__server_calls_the_client_gone_once_all_is_written__is_sent_to_its_end() -> None:
    sent: list[bytes] = []
    all_is_written = asyncio.Event()

    async def send(message: dict) -> None:
        if not message.get("more_body", True):
            all_is_written.set()
            await asyncio.sleep(0.01)
        sent.append(message.get("body", b""))

    async def receive() -> dict:
        await all_is_written.wait()
        return {"type": "http.disconnect"}

    stream = EventStream(
        one_event(), request_id="r", keep_alive_s=60, write_timeout_s=60, headers={}, style=EventStyle()
    )
    async with asyncio.timeout(60):
        await stream({"type": "http"}, receive, send)

    assert sent == [b"", EVENT, LAST]
