"""What a stream's response writes, and when."""

import asyncio

import pytest

from router.http.streaming import ClientDisconnected, EventStream, EventStyle


def stream_of(events, keep_alive_s: float = 60.0) -> EventStream:
    return EventStream(
        events, request_id="r", keep_alive_s=keep_alive_s, write_timeout_s=0.1, headers={}, style=EventStyle()
    )


async def never() -> dict[str, str]:
    return await asyncio.get_running_loop().create_future()


async def test_event_stream__events_end__the_last_bytes_follow_in_the_same_turn_of_the_loop() -> None:
    """A server writes what it is given in one turn at once: to the proxy, and by it to the client."""
    sent = []
    turns = 0

    async def events():
        yield b"data: 1\n\n"
        await asyncio.sleep(0)
        yield b"data: 2\n\n"

    async def send(message) -> None:
        sent.append((turns, message.get("body"), message.get("more_body")))

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await stream_of(events())({}, never, send)
    counting.cancel()

    assert [body for _, body, _ in sent] == [None, b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n"]
    assert [more for _, _, more in sent] == [None, True, True, False]
    assert sent[2][0] == sent[3][0] > sent[1][0]


async def test_event_stream__client_does_not_take_the_last_bytes__is_let_go() -> None:
    async def events():
        yield b"data: 1\n\n"

    async def send(message) -> None:
        if message.get("more_body") is False:
            await never()

    with pytest.raises(ClientDisconnected):
        await asyncio.wait_for(stream_of(events(), keep_alive_s=0.05)({}, never, send), 30)
