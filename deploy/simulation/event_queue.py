"""The one heap of events that a simulated fleet lives by, and its clock."""

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class FleetClock:
    """`pdmux_actor.executor.simulated.Clock` of all units at once: only the agenda moves it, executors never do."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s

    def advance_to(self, time_s: float | None) -> bool:
        return time_s is not None and time_s <= self.now_s

    def wake(self) -> None:
        """Whoever brings an event wakes its unit."""


class EventQueue:
    """Actions in order of time; those of one instant in the order in which they were asked for."""

    def __init__(self) -> None:
        self.clock = FleetClock()
        self.num_done = 0
        self._heap: list[tuple[float, int, Action]] = []
        self._num_asked = 0

    def at(self, time_s: float, action: Action) -> None:
        self._num_asked += 1
        now_s = self.clock.now_s
        heapq.heappush(self._heap, (time_s if time_s > now_s else now_s, self._num_asked, action))

    @property
    def has_more(self) -> bool:
        return bool(self._heap)

    def step(self) -> bool:
        """Does the next action; False when there is none."""
        if not self._heap:
            return False
        self.clock.now_s, _, action = heapq.heappop(self._heap)
        self.num_done += 1
        action()
        return True
