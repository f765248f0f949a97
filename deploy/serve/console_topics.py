"""Tells what consoles follow of the control loop. Nothing is worked out, and nothing kept, while nobody asks."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from deploy.control.changed_task import changed_task
from deploy.control.control_loop import ControlLoop
from deploy.control.planner import PlanAnswer, PlanTask
from deploy.inspection.live_fleet import LiveFleet, LiveSelection
from deploy.inspection.live_history import LiveHistory
from deploy.inspection.live_picture import live_fleet
from deploy.inspection.plan_report import look_report, plan_report
from router.what_if import WhatIfChanges

Plans = Callable[[PlanTask], Awaitable[PlanAnswer]]
"""By the planner, in a process of its own. Raises TimeoutError."""


class ConsoleTopics:
    """The answers are JSON: docs/console.md has their schemas."""

    def __init__(self, loop: ControlLoop, plans: Plans, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is the control loop's."""
        self._loop = loop
        self._clock = clock
        self._plans = plans
        self._history = LiveHistory()
        self._planning = asyncio.Lock()

    def told(self, topic: str, about: Mapping[str, str]) -> bytes:
        """Returns one of the topics `fleet` (`about`: a LiveSelection's), `history` and `plan`."""
        match topic:
            case "fleet":
                return msgspec.json.encode(self._fleet(LiveSelection(**about)))
            case "history":
                return msgspec.json.encode(self._history.told())
            case "plan":
                return msgspec.json.encode(plan_report(self._loop.status(self._clock()), time.time()))
            case _:
                raise ValueError(f"no topic {topic!r} of the control loop")

    async def what_if(self, changes: WhatIfChanges) -> bytes | None:
        """The LookReport of a plan for them; None: the planner did not answer in time, or is at work for somebody else.
        Nothing is adopted. Raises ModelUnknown.
        """
        if self._planning.locked():
            return None
        async with self._planning:
            now_s = self._clock()
            task = changed_task(self._loop.trial_task(None, now_s), changes)
            try:
                answer = await self._plans(task)
            except TimeoutError:
                return None
            units = {u.unit_id for u in task.needs.units}
            return msgspec.json.encode(look_report(answer.as_look(changes.text()), self._loop.status(now_s), units))

    def _fleet(self, selection: LiveSelection) -> LiveFleet:
        now_s, at_s = self._clock(), time.time()
        status = self._loop.status(now_s)
        recent = self._history.recent_requests(status, now_s)
        told = live_fleet(status, selection, recent, at_s)
        if selection == LiveSelection():
            self._history.add(told, at_s)
        return told
