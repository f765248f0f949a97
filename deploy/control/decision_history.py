"""Records what the control loop decided lately, and why."""

import logging
from collections import deque
from dataclasses import dataclass, replace

from pdmux_actor.lease import UnitReport

logger = logging.getLogger(__name__)

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
    """The newest decisions. One that repeats the last one only renews it; the others are logged."""

    def __init__(self) -> None:
        self._decisions: deque[NotedDecision] = deque(maxlen=_MAX_DECISIONS)

    def note(self, now_s: float, kind: str, reason: str, moves: tuple[str, ...] = ()) -> None:
        decision = PlacementDecision(kind=kind, reason=reason, moves=moves)
        if self._decisions and self._decisions[-1].decision == decision:
            self._decisions.pop()
        else:
            logger.info("control loop decided", extra={"kind": kind, "reason": reason, "moves": moves})
        self._decisions.append(NotedDecision(at_s=now_s, decision=decision))

    def unit_joined(self, report: UnitReport) -> None:
        logger.info("unit joined", extra={"unit": report.unit_id, "pool": report.pool, "node": report.node})

    def unit_gone(self, report: UnitReport, *, died: bool) -> None:
        level = logging.WARNING if died else logging.INFO
        told = {"unit": report.unit_id, "died": died, "failure": report.failure}
        logger.log(level, "unit is gone", extra=told | {"models": [s.model for s in report.models]})

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
