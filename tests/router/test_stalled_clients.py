"""A client that keeps its connection and reads nothing more is let go, whatever the stream was about to write."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from router.http.streaming import ClientDisconnected, EventStream, EventStyle

LAST, KEEP_ALIVE = b"data: [DONE]\n\n", b": keep-alive\n\n"


async def one_event() -> AsyncGenerator[bytes, None]:
    yield b"data: {}\n\n"


async def one_event_and_silence() -> AsyncGenerator[bytes, None]:
    yield b"data: {}\n\n"
    await asyncio.Future()


@pytest.mark.parametrize(("events", "stuck_at"), [(one_event, LAST), (one_event_and_silence, KEEP_ALIVE)])
async def test_stream__server_has_no_room_for_the_end_or_a_comment__client_is_let_go(events, stuck_at) -> None:
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
