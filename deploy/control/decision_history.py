"""Records what the control loop decided lately, and why."""

from collections import deque
from dataclasses import dataclass, replace

from deploy.control.flight_recorder import FlightRecorder
from pdmux_actor.lease import UnitReport
from placement.plan_steps import Step
from router.telemetry.fleet_event import EventKind

_MAX_DECISIONS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementDecision:
    """`moves` are its steps in words, none where nothing was changed. `seconds_ago` is filled in when it is told."""

    kind: str
    reason: str
    moves: tuple[str, ...] = ()
    seconds_ago: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedDecision:
    """`at_s` on the control loop's clock."""

    at_s: float
    decision: PlacementDecision


class DecisionHistory:
    """The newest decisions. One that repeats the last one only renews it; the others are recorded."""

    def __init__(self, recorder: FlightRecorder) -> None:
        self._recorder = recorder
        self._decisions: deque[NotedDecision] = deque(maxlen=_MAX_DECISIONS)

    def note(self, now_s: float, kind: str, reason: str) -> None:
        """`kind` is one of EventKind's."""
        if self._is_news(now_s, PlacementDecision(kind=kind, reason=reason)):
            self._recorder.record(now_s, EventKind(kind), reason)

    def moved(self, now_s: float, steps: tuple[Step, ...], moves: tuple[str, ...]) -> None:
        """`moves` are the steps in words."""
        reason = "towards the plan"
        if self._is_news(now_s, PlacementDecision(kind="move", reason=reason, moves=moves)):
            self._recorder.moved(now_s, steps, moves)

    def unit_joined(self, now_s: float, report: UnitReport) -> None:
        self._recorder.unit_joined(now_s, report)

    def unit_gone(self, now_s: float, report: UnitReport, *, died: bool) -> None:
        self._recorder.unit_gone(now_s, report, died=died)

    def _is_news(self, now_s: float, decision: PlacementDecision) -> bool:
        """Notes it; True if it is another than the last one."""
        is_new = not self._decisions or self._decisions[-1].decision != decision
        if not is_new:
            self._decisions.pop()
        self._decisions.append(NotedDecision(at_s=now_s, decision=decision))
        return is_new

    def kept(self) -> tuple[NotedDecision, ...]:
        """Oldest first."""
        return tuple(self._decisions)

    def restore(self, decisions: tuple[NotedDecision, ...]) -> None:
        self._decisions.extendleft(reversed(decisions))

    def told(self, now_s: float) -> tuple[PlacementDecision, ...]:
        """Newest first."""
        return tuple(
            replace(noted.decision, seconds_ago=max(0.0, now_s - noted.at_s)) for noted in reversed(self._decisions)
        )
