import asyncio
import time

from pdmux_actor.serving.connection_heartbeat import ConnectionHeartbeat


async def test_heartbeat__loop_held_up__says_so_once_then_is_punctual_again() -> None:
    heard: list[bool] = []
    enough = asyncio.Event()

    def on_beat(now_s: float, punctual: bool) -> None:
        heard.append(punctual)
        if punctual:
            beat.stop()
            enough.set()

    beat = ConnectionHeartbeat(0.2, on_beat)
    beat.start()
    time.sleep(0.6)  # noqa: ASYNC251 - it is the loop that is to stand still
    await asyncio.wait_for(enough.wait(), 30)

    assert heard[0] is False
    assert heard[-1] is True


async def test_heartbeat__stopped__is_not_called_again() -> None:
    heard: list[float] = []
    first = asyncio.Event()

    def on_beat(now_s: float, punctual: bool) -> None:
        heard.append(now_s)
        first.set()

    beat = ConnectionHeartbeat(0.01, on_beat)
    beat.start()
    await asyncio.wait_for(first.wait(), 30)
    beat.stop()
    until_stopped = len(heard)
    await asyncio.sleep(0.1)  # ten periods, in which nothing is to happen

    assert len(heard) == until_stopped
