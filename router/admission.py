"""Whether a request may enter."""

import math
from dataclasses import dataclass

from router.error_bodies import MAX_RETRY_AFTER_S

_BLIND_RETRY_AFTER_S = 5  # before the first completion tells the rate
_RATE_WINDOW_S = 30.0


@dataclass(frozen=True, slots=True)
class Admit:
    pass


@dataclass(frozen=True, slots=True)
class Hold:
    """No unit is ready: wait for one until `deadline_s`."""

    deadline_s: float


@dataclass(frozen=True, slots=True)
class Shed:
    retry_after_s: int


Decision = Admit | Hold | Shed


class CompletionRate:
    """Requests per second that left the queue, averaged over the last half minute or so (exponential window)."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._at_s: float | None = None
        self._since_s: float | None = None

    def record(self, now_s: float) -> None:
        self._weight = self._decayed(now_s) + 1.0
        self._at_s = now_s
        if self._since_s is None:
            self._since_s = now_s

    def per_s(self, now_s: float) -> float:
        """0 before the first record."""
        if self._since_s is None:
            return 0.0
        observed_s = max(1.0, now_s - self._since_s)
        # The window's mass so far: without it the rate would read low until the window has filled.
        return self._decayed(now_s) / (_RATE_WINDOW_S * (1.0 - math.exp(-observed_s / _RATE_WINDOW_S)))

    def _decayed(self, now_s: float) -> float:
        if self._at_s is None:
            return 0.0
        return self._weight * math.exp(-max(0.0, now_s - self._at_s) / _RATE_WINDOW_S)


def admit(
    *, queued: int, max_queued: int, completions_per_s: float, ready: bool, now_s: float, hold_s: float
) -> Decision:
    """`queued` counts the model's requests that wait for their first token."""
    if queued >= max_queued:
        return Shed(retry_after_s(queued=queued, max_queued=max_queued, completions_per_s=completions_per_s))
    return Admit() if ready else Hold(deadline_s=now_s + hold_s)


def retry_after_s(*, queued: int, max_queued: int, completions_per_s: float) -> int:
    """Until the queue is half empty, so that those who come back find room and do not race for one place."""
    if completions_per_s <= 0.0:
        return _BLIND_RETRY_AFTER_S
    surplus = queued - max_queued / 2
    # Bounded before rounding: a rate that has decayed for hours makes the quotient infinite.
    return math.ceil(max(1.0, min(float(MAX_RETRY_AFTER_S), surplus / completions_per_s)))
