"""One plan, by a planner process of its own that ends with it."""

import asyncio
from collections.abc import Mapping

from deploy.control.planner import PlanAnswer, PlanTask
from deploy.planning.planner_process import PlannerProcess

_WITHIN_S = 40.0  # a start, a search and what it may take to look at the clock
_POLL_S = 0.05


async def plan_once(task: PlanTask, solver: str, profiles: Mapping[str, str]) -> PlanAnswer:
    """Raises TimeoutError."""
    planner = PlannerProcess().using(solver, profiles)
    try:
        planner.ask(task)
        async with asyncio.timeout(_WITHIN_S):
            while (answer := planner.answer()) is None:  # noqa: ASYNC110 - a planner sets no event
                await asyncio.sleep(_POLL_S)
        return answer
    finally:
        await planner.close()
