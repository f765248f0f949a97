"""Records what the control loop decided lately, and why."""

import logging
from collections import deque
from dataclasses import dataclass

logger = logging.getLogger(__name__)

_MAX_DECISIONS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementDecision:
    """`moves` are its steps in words, none where nothing was changed. `seconds_ago` is filled in when it is told."""

    kind: str
    reason: str
    moves: tuple[str, ...] = ()
    seconds_ago: float = 0.0


class DecisionHistory:
    """The newest decisions. One that repeats the last one only renews it; the others are logged."""

    def __init__(self) -> None:
        self._decisions: deque[tuple[float, PlacementDecision]] = deque(maxlen=_MAX_DECISIONS)

    def note(self, now_s: float, kind: str, reason: str, moves: tuple[str, ...] = ()) -> None:
        decision = PlacementDecision(kind=kind, reason=reason, moves=moves)
        if self._decisions and self._decisions[-1][1] == decision:
            self._decisions.pop()
        else:
            logger.info("control loop decided", extra={"kind": kind, "reason": reason, "moves": moves})
        self._decisions.append((now_s, decision))

    def told(self, now_s: float) -> tuple[PlacementDecision, ...]:
        """Newest first."""
        return tuple(
            PlacementDecision(kind=d.kind, reason=d.reason, moves=d.moves, seconds_ago=max(0.0, now_s - at_s))
            for at_s, d in reversed(self._decisions)
        )
