"""Keeps the newest events of a fleet, in segments that are documents of the state store."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from router.telemetry.fleet_event import OF_REQUESTS, FleetEvent

FORMAT = 1
STREAMS = ("fleet", "requests")
SEGMENTS = 64
_SEGMENT_EVENTS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSegment:
    """`number` counts the segments of its stream from 0."""

    number: int
    events: tuple[FleetEvent, ...]


@dataclass(slots=True, eq=False)
class _Stream:
    """`first` is the number of the oldest segment that is kept."""

    first: int = 0
    segments: deque[list[FleetEvent]] = field(default_factory=lambda: deque([[]]))
    fresh: set[int] = field(default_factory=set)

    def add(self, event: FleetEvent) -> None:
        if len(self.segments[-1]) >= _SEGMENT_EVENTS:
            self.segments.append([])
            if len(self.segments) > SEGMENTS:
                self.segments.popleft()
                self.first += 1
        self.segments[-1].append(event)
        self.fresh.add(self.first + len(self.segments) - 1)


class FlightLog:
    """Keeps the newest 16,384 events of each of two streams: requests that fail by the thousands push out no loss of a
    unit.
    """

    def __init__(self) -> None:
        self._streams = {name: _Stream() for name in STREAMS}

    def add(self, events: Iterable[FleetEvent]) -> None:
        for event in events:
            self._streams["requests" if event.kind in OF_REQUESTS else "fleet"].add(event)

    def since(self, at_s: float) -> tuple[FleetEvent, ...]:
        """Oldest first."""
        kept = (e for stream in self._streams.values() for segment in stream.segments for e in segment)
        return tuple(sorted((e for e in kept if e.at_s >= at_s), key=lambda e: e.at_s))

    def fresh(self) -> Iterator[tuple[str, EventSegment]]:
        """Yields the segments that changed since the last call, with the names of their documents."""
        for name, stream in self._streams.items():
            for number in sorted(n for n in stream.fresh if n >= stream.first):
                events = tuple(stream.segments[number - stream.first])
                yield document_name(name, number % SEGMENTS), EventSegment(number=number, events=events)
            stream.fresh.clear()

    def renew(self) -> None:
        """Takes all segments for changed, for a store that has none of them yet."""
        for stream in self._streams.values():
            stream.fresh.update(range(stream.first, stream.first + len(stream.segments)))

    def restore(self, stream: str, segments: Iterable[EventSegment]) -> None:
        """Begins with what was kept; before anything is added."""
        kept = sorted(segments, key=lambda s: s.number)
        newest = [s for s in kept if s.number > kept[-1].number - SEGMENTS] if kept else []
        if newest:  # a segment that could not be read leaves a gap, which nobody misses
            first = newest[-1].number - len(newest) + 1
            self._streams[stream] = _Stream(first, deque([list(s.events) for s in newest]))


def document_name(stream: str, place: int) -> str:
    """Returns the name of one of the documents that a stream is written to in turn."""
    return f"events {stream} {place:02d}"
