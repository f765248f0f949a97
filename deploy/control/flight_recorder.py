"""Records what happens to a fleet, as structured events: each is a log line, counts in the metrics and is kept."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

from pdmux_actor.lease import Lease, ModelPhase, UnitReport
from placement.plan_steps import DrainModelStep, LoadModelStep, Step
from router.telemetry.fleet_event import EventKind, FleetEvent
from router.view import ModelLoadTimes

logger = logging.getLogger(__name__)

_MOST_WAITING = 4096
_WARNED_OF = frozenset(
    {
        EventKind.UNIT_LOST,
        EventKind.OUT,
        EventKind.MODEL_FAILED,
        EventKind.MODEL_STALLED,
        EventKind.REQUEST_FAILED,
        EventKind.SERVE_SILENT,
        EventKind.STATE_NOT_KEPT,
    }
)
_OF_PHASE: Mapping[ModelPhase, tuple[EventKind, str]] = {
    ModelPhase.LOADING: (EventKind.MODEL_LOADING, "begins to load"),
    ModelPhase.READY: (EventKind.MODEL_READY, "is ready"),
    ModelPhase.STALLED: (EventKind.MODEL_STALLED, "makes no progress"),
    ModelPhase.FAILED: (EventKind.MODEL_FAILED, "does not load"),
    ModelPhase.ASLEEP: (EventKind.MODEL_GONE, "sleeps in host memory"),
    ModelPhase.DRAINING: (EventKind.MODEL_GONE, "leaves"),
}


class FlightRecorder:
    """`epoch_s` returns what added to the control loop's clock is the time of day: either may be set."""

    def __init__(self, epoch_s: Callable[[], float] = lambda: 0.0) -> None:
        self._epoch_s = epoch_s
        self._waiting: deque[FleetEvent] = deque(maxlen=_MOST_WAITING)
        self._counts: Counter[EventKind] = Counter()
        self._phases: dict[str, dict[str, ModelPhase]] = {}
        self._loading_since_s: dict[tuple[str, str], float] = {}
        self._downloading_s: dict[tuple[str, str], float] = {}  # when it was last told
        self._load_times: dict[str, ModelLoadTimes] = {}
        self._leases: dict[str, int] = {}
        self._empty_places: Counter[tuple[str, str]] = Counter()
        self._failing: set[str] = set()  # their places are empty already: another may come before they are gone

    def record(
        self, now_s: float, kind: EventKind, text: str, *, unit: str = "", model: str = "", took_s: float | None = None
    ) -> None:
        event = FleetEvent(at_s=self._epoch_s() + now_s, kind=kind, text=text, unit=unit, model=model, took_s=took_s)
        self._keep(event)

    def take(self, events: Iterable[FleetEvent]) -> None:
        """Takes events of a gateway."""
        for event in events:
            self._keep(event)

    def fetch(self) -> tuple[FleetEvent, ...]:
        """Returns what was recorded since the last call."""
        events = tuple(self._waiting)
        self._waiting.clear()
        return events

    def counts(self) -> Mapping[str, int]:
        """Returns, of every kind, how many there were."""
        return {kind.value: self._counts[kind] for kind in EventKind}

    def load_times(self) -> tuple[ModelLoadTimes, ...]:
        return tuple(self._load_times.values())

    def unit_joined(self, now_s: float, report: UnitReport) -> None:
        place = (report.pool, report.node)
        where = f"pool {report.pool}, node {report.node}"
        if self._empty_places[place]:
            self._empty_places[place] -= 1
            text = f"another takes the place of one that was lost ({where})"
            self.record(now_s, EventKind.UNIT_RESTARTED, text, unit=report.unit_id)
        else:
            self.record(now_s, EventKind.UNIT_JOINED, where, unit=report.unit_id)

    def unit_gone(self, now_s: float, report: UnitReport, *, died: bool) -> None:
        unit_id = report.unit_id
        held = ", ".join(sorted(s.model for s in report.models if s.asleep is None)) or "no model"
        why = report.failure or ("it says nothing any more" if died else "it was to go")
        kind = EventKind.UNIT_LOST if died else EventKind.UNIT_LEFT
        self.record(now_s, kind, f"{why}; it held {held}", unit=unit_id)
        self._empty_places[report.pool, report.node] += died and unit_id not in self._failing
        self._failing.discard(unit_id)
        self._phases.pop(unit_id, None)
        self._leases.pop(unit_id, None)
        self._loading_since_s = {k: s for k, s in self._loading_since_s.items() if k[0] != unit_id}
        self._downloading_s = {k: s for k, s in self._downloading_s.items() if k[0] != unit_id}

    def moved(self, now_s: float, steps: Iterable[Step], words: Iterable[str]) -> None:
        for step, text in zip(steps, words, strict=True):
            model = step.model if isinstance(step, LoadModelStep | DrainModelStep) else ""
            self.record(now_s, EventKind.MOVE, text, unit=step.unit_id, model=model)

    def heard(self, now_s: float, report: UnitReport, lease: Lease) -> None:
        """Records how its models changed since the heartbeat before, and a lease that is new."""
        unit_id = report.unit_id
        if report.failure and unit_id not in self._failing:
            self._failing.add(unit_id)
            self._empty_places[report.pool, report.node] += 1
        phases = {s.model: s.phase for s in report.models}
        errors = {s.model: s.error for s in report.models}
        self._downloading_s |= {(unit_id, s.model): now_s for s in report.models if s.is_downloading}
        before = self._phases.get(unit_id, phases)
        self._phases[unit_id] = phases
        for model, phase in phases.items():
            if before.get(model) is not phase:
                self._note_phase(now_s, unit_id, model, phase, before.get(model), errors[model])
        for model in sorted(before.keys() - phases.keys()):
            self.record(now_s, EventKind.MODEL_GONE, "is gone", unit=unit_id, model=model)
        if self._leases.get(unit_id, lease.version) != lease.version or (unit_id not in self._leases and lease.models):
            models = ", ".join(f"{a.model} {a.quota_blocks}" for a in lease.models) or "no model"
            self.record(now_s, EventKind.LEASE, f"version {lease.version}: {models}", unit=unit_id)
        self._leases[unit_id] = lease.version

    def _note_phase(
        self, now_s: float, unit_id: str, model: str, phase: ModelPhase, before: ModelPhase | None, error: str | None
    ) -> None:
        kind, text = _OF_PHASE[phase]
        took_s = None
        if phase is ModelPhase.LOADING:
            self._loading_since_s[unit_id, model] = now_s
        elif phase is ModelPhase.READY:
            since_s = self._loading_since_s.pop((unit_id, model), None)
            if since_s is not None:
                took_s = now_s - since_s
                read_s = now_s - max(since_s, self._downloading_s.pop((unit_id, model), since_s))  # next time, too
                known = self._load_times.get(model, ModelLoadTimes(model=model, loads=0, seconds=0.0))
                told = ModelLoadTimes(model=model, loads=known.loads + 1, seconds=known.seconds + read_s)
                self._load_times[model] = told
                text = f"is ready after {took_s:.1f} s"
            elif before is ModelPhase.STALLED:
                text = "makes progress again"
        text = f"{text}: {error}" if error else text
        self.record(now_s, kind, text, unit=unit_id, model=model, took_s=took_s)

    def _keep(self, event: FleetEvent) -> None:
        self._waiting.append(event)
        self._counts[event.kind] += event.count
        fields = {"unit": event.unit, "model": event.model, "request_id": event.request_id}
        told: dict[str, object] = {"kind": event.kind.value, "reason": event.text, "at_s": event.at_s}
        told |= {k: v for k, v in fields.items() if v}
        if event.took_s is not None:
            told["took_s"] = round(event.took_s, 3)
        logger.log(logging.WARNING if event.kind in _WARNED_OF else logging.INFO, "fleet event", extra=told)
