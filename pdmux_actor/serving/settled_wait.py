"""Waits until the control loop has nothing to change on a unit: one that came, or one that was told to go."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S = 2.0

AskSettled = Callable[[], Awaitable[bool]]


async def until_settled(ask: AskSettled, *, is_worth_it: Callable[[], bool], poll_s: float, timeout_s: float) -> bool:
    """False when the time is over, or the wait is not worth it any more. A control loop that does not answer keeps
    nobody: that is settled, too.
    """
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s and is_worth_it():
        await asyncio.sleep(poll_s)  # a heartbeat has told the control loop before it is asked
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                if await ask():
                    return True
        except Exception as error:  # Ray, Serve and gRPC raise different trees for "not there" and "broken"
            logger.info("the control loop does not say whether this unit is settled", extra={"reason": repr(error)})
            return True
    return False
