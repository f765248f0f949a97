"""Says where events for the engine thread arrive."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from pdmux_actor.scheduling.events import Event


class EventSource(Protocol):
    def due(self, now_s: float) -> Iterable[Event]:
        """Events to handle now, in order; each is given once."""
        ...

    def next_due_s(self) -> float | None:
        """Returns when the next event that is known already falls due."""
        ...


class Inbox:
    """Thread-safe; wakes the executor's `wait`."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._events: deque[Event] = deque()  # append and popleft are atomic

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._wake()

    def due(self, now_s: float) -> Iterable[Event]:
        while self._events:
            yield self._events.popleft()

    def next_due_s(self) -> float | None:
        return None


class Timetable:
    """Events at times that are known beforehand: simulated arrivals."""

    def __init__(self, events: Iterable[tuple[float, Event]]) -> None:
        self._events = deque(sorted(events, key=lambda timed: timed[0]))

    def due(self, now_s: float) -> Iterable[Event]:
        while self._events and self._events[0][0] <= now_s:
            yield self._events.popleft()[1]

    def next_due_s(self) -> float | None:
        return self._events[0][0] if self._events else None
