import asyncio

from pdmux_actor.serving.actor import AskSettled, until_settled


def answers(*told: bool | Exception) -> AskSettled:
    left = list(told)

    async def ask() -> bool:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


async def wait(ask: AskSettled, *, timeout_s: float = 30.0, worth: list[bool] | None = None) -> bool:
    left = worth or [True] * 100
    return await until_settled(ask, is_worth_it=lambda: left.pop(0), poll_s=0.001, timeout_s=timeout_s)


async def test_until_settled__said_so_at_the_third_time__is_true() -> None:
    assert await wait(answers(False, False, True))


async def test_until_settled__control_loop_does_not_answer__keeps_nobody() -> None:
    assert await wait(answers(False, RuntimeError("no replicas")))


async def test_until_settled__engine_dies_meanwhile__ends_the_wait() -> None:
    assert not await wait(answers(False, False), worth=[True, True, False])


async def test_until_settled__never__ends_with_its_time() -> None:
    async def never() -> bool:
        return False

    async with asyncio.timeout(30):
        assert not await wait(never, timeout_s=0.05, worth=[True] * 1000)


async def test_until_settled__no_time_at_all__asks_nobody() -> None:
    assert not await wait(answers(), timeout_s=0.0)
