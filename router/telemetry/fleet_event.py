"""Defines what the flight recorder keeps: one structured event for each thing that happened to a fleet, or
went wrong with a request.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from router.telemetry.service_report import ServiceReport


class EventKind(StrEnum):
    """docs/events.md says of each when it is recorded."""

    CONTROLLER_STARTED = "controller_started"
    SERVE_SILENT = "serve_silent"
    SERVE_BACK = "serve_back"
    STATE_NOT_KEPT = "state_not_kept"
    STATE_KEPT = "state_kept"
    PLAN = "plan"
    KEPT = "kept"
    SHADOW = "shadow"
    SCALE = "scale"
    MOVE = "move"
    OUT = "out"
    WEIGHTS = "weights"
    LEASE = "lease"
    UNIT_JOINED = "unit_joined"
    UNIT_RESTARTED = "unit_restarted"
    UNIT_LEFT = "unit_left"
    UNIT_LOST = "unit_lost"
    MODEL_LOADING = "model_loading"
    MODEL_READY = "model_ready"
    MODEL_STALLED = "model_stalled"
    MODEL_FAILED = "model_failed"
    MODEL_GONE = "model_gone"
    REQUEST_MOVED = "request_moved"
    REQUEST_FAILED = "request_failed"
    REQUEST_SHED = "request_shed"
    SLO_MISSED = "slo_missed"


OF_REQUESTS = frozenset(
    {EventKind.REQUEST_MOVED, EventKind.REQUEST_FAILED, EventKind.REQUEST_SHED, EventKind.SLO_MISSED}
)
"""Kinds that gateways record; the control loop records the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEvent:
    """`at_s` is the time of day, in seconds since 1970. `unit`, `model` and `request_id` are empty where it concerns
    none, or several. `took_s`: of a load, until it was ready. `count` events of a kind and a model that came too thick
    to be kept one by one are one.
    """

    at_s: float
    kind: EventKind
    text: str
    unit: str = ""
    model: str = ""
    request_id: str = ""
    took_s: float | None = None
    count: int = 1


_WINDOW_S = 10.0
_MOST_WAITING = 2000
_ONE_BY_ONE: Mapping[EventKind, int] = {
    EventKind.REQUEST_MOVED: 64,
    EventKind.REQUEST_FAILED: 16,
    EventKind.SLO_MISSED: 4,
    EventKind.REQUEST_SHED: 1,
}
"""Of each kind and model in ten seconds; what comes beyond is counted in one more event."""


@dataclass(slots=True, eq=False)
class _Window:
    started_s: float
    recorded: int = 0
    beyond: int = 0


class RequestEvents:
    """Events of one gateway. Fetch them several times in ten seconds: they wait here meanwhile."""

    def __init__(self, time_of_day: Callable[[], float] = time.time) -> None:
        self._time_of_day = time_of_day
        self._windows: dict[tuple[EventKind, str], _Window] = {}
        self._waiting: list[FleetEvent] = []

    def moved(self, *, model: str, unit: str, request_id: str, reason: str) -> None:
        self._record(EventKind.REQUEST_MOVED, f"lost its unit: {reason}", model=model, unit=unit, request_id=request_id)

    def shed(self, *, model: str, request_id: str) -> None:
        self._record(EventKind.REQUEST_SHED, "refused by overload (429)", model=model, request_id=request_id)

    def failed(self, *, model: str, unit: str, request_id: str, reason: str) -> None:
        self._record(EventKind.REQUEST_FAILED, reason, model=model, unit=unit, request_id=request_id)

    def missed(self, model: str, report: ServiceReport) -> None:
        """Records an answer that was not in time, with what was late."""
        late = []
        if report.ttft_s is not None and not report.ttft_met:
            late.append(f"first token after {report.ttft_s:.2f} s, target {report.slo.ttft_s:g} s")
        if not report.tbt_met:
            late.append(f"a gap of {report.worst_gap_s:.2f} s, target {report.slo.tbt_s:g} s")
        text, unit = "; ".join(late), report.unit_id
        self._record(EventKind.SLO_MISSED, text, model=model, unit=unit, request_id=report.request_id)

    def fetch(self) -> tuple[FleetEvent, ...]:
        """Takes what was recorded since the last call."""
        now_s = self._time_of_day()
        for (kind, model), window in list(self._windows.items()):
            if now_s - window.started_s >= _WINDOW_S:
                del self._windows[kind, model]
                if window.beyond:
                    text = f"{window.beyond} more in {_WINDOW_S:.0f} s"
                    told = FleetEvent(at_s=now_s, kind=kind, text=text, model=model, count=window.beyond)
                    self._waiting.append(told)
        events, self._waiting = tuple(self._waiting), []
        return events

    def give_back(self, events: tuple[FleetEvent, ...]) -> None:
        """Keeps, for the next call, what could not be passed on; the newest of it."""
        self._waiting = [*events, *self._waiting][-_MOST_WAITING:]

    def _record(self, kind: EventKind, text: str, *, model: str, request_id: str, unit: str = "") -> None:
        now_s = self._time_of_day()
        window = self._windows.setdefault((kind, model), _Window(now_s))
        if window.recorded >= _ONE_BY_ONE[kind]:
            window.beyond += 1
            return
        window.recorded += 1
        self._waiting.append(
            FleetEvent(at_s=now_s, kind=kind, text=text, unit=unit, model=model, request_id=request_id)
        )
