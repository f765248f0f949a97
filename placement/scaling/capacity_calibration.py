"""Learns from requests in time by how much the planner's estimate of what nodes bear is off."""

import math

_FEWEST = 100  # requests of which a share says anything
_SURE = 2.0  # standard errors that a share must be away from the target
_MORE, _LESS = 1.03, 0.92  # careful where nodes are given up, quick where requests are late
_LEAST, _MOST = 0.6, 1.3


class CapacityCalibration:
    """`factor` times what the estimate says is what nodes are taken to bear. It rises a little whenever a pool that
    has had the same nodes for a while keeps its target and has slack, and falls by more when it misses it: additive
    increase and multiplicative decrease, as congestion control has it. What comes while nodes come or go says nothing.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._requests = self._in_time = 0
        self._since_s: float | None = None

    def restart(self, now_s: float) -> None:
        """Nodes come or go."""
        self._requests = self._in_time = 0
        self._since_s = now_s

    def note(self, requests: int, in_time: int) -> None:
        self._requests += requests
        self._in_time += in_time

    def settle(self, target: float, *, has_slack: bool, every_s: float, now_s: float) -> bool:
        """True if it has learned something. `every_s`: what it takes to see whether the last lesson was right."""
        since_s = now_s if self._since_s is None else self._since_s
        self._since_s = since_s
        if self._requests < _FEWEST:
            return False
        share = self._in_time / self._requests
        error = math.sqrt(target * (1 - target) / self._requests)
        if share < target - _SURE * error:
            self.factor = max(_LEAST, self.factor * _LESS)
        elif share >= target and has_slack and now_s - since_s >= every_s:
            self.factor = min(_MOST, self.factor * _MORE)
        elif now_s - since_s < every_s:
            return False
        self.restart(now_s)
        return True
