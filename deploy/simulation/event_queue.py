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
        self._wakes: list[tuple[float, int, Action]] = []
        self._arrivals: list[tuple[float, int, Action]] = []
        self._num_asked = 0

    def at(self, time_s: float, action: Action) -> None:
        self._ask(self._heap, time_s, action)

    def wake_at(self, time_s: float, action: Action) -> None:
        """An action of one unit, or for requests that wait at a gateway, which concerns no units but those of their
        models.
        """
        self._ask(self._wakes, time_s, action)

    def arrival_at(self, time_s: float, action: Action) -> None:
        """A request's arrival, which concerns units of its model only."""
        self._ask(self._arrivals, time_s, action)

    @property
    def has_more(self) -> bool:
        return bool(self._heap or self._wakes or self._arrivals)

    @property
    def next_of_all_s(self) -> float:
        """Returns when the next action comes that is neither a unit's own nor an arrival; infinite if none does."""
        return self._heap[0][0] if self._heap else float("inf")

    def _ask(self, heap: list[tuple[float, int, Action]], time_s: float, action: Action) -> None:
        self._num_asked += 1
        now_s = self.clock.now_s
        heapq.heappush(heap, (time_s if time_s > now_s else now_s, self._num_asked, action))

    def step(self) -> bool:
        """Does the next action; False when there is none."""
        heap = self._heap
        for other in (self._wakes, self._arrivals):
            if other and (not heap or other[0] < heap[0]):
                heap = other
        if not heap:
            return False
        self.clock.now_s, _, action = heapq.heappop(heap)
        self.num_done += 1
        action()
        return True
