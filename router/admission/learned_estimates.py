"""Learns from the requests that pass: lengths of answers, the speed of a queue, the time of a wake."""

import math
from collections.abc import Mapping

_RATE_WINDOW_S = 30.0
_FEW_REQUESTS = 5.0
_LENGTH_SMOOTHING = 0.05
_WAKE_SMOOTHING = 0.3
_PRIOR_OUTPUT_TOKENS = 256.0
_PRIOR_WAKE_S = 10.0
_COPY_LAG_S = 2.0  # from a request to the lease that wakes its model, and from a ready unit to a view that shows it
_LONGEST_WAKE_S = 600.0  # what took longer was not a wake: nobody waited any more


class OutputLengths:
    """Mean output tokens per model."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def predicted_tokens(self, model: str, *, max_tokens: int) -> int:
        return max(1, min(max_tokens, math.ceil(self._means.get(model, _PRIOR_OUTPUT_TOKENS))))

    def record(self, model: str, tokens: int) -> None:
        mean = self._means.get(model, float(tokens))
        self._means[model] = mean + _LENGTH_SMOOTHING * (tokens - mean)

    def keep(self, models: frozenset[str]) -> None:
        self._means = {m: mean for m, mean in self._means.items() if m in models}


class DrainRate:
    """Requests, and virtual tokens of them, per second that left a queue while there was one, over the last half minute
    of queueing or so.

    Time without a queue does not count: what arrives then says nothing about what could be served.
    """

    def __init__(self) -> None:
        self._left = 0.0
        self._virtual_tokens = 0.0
        self._work = 0.0
        self._busy_s = 0.0
        self._at_s: float | None = None

    def observe(
        self, now_s: float, *, queued: bool, left: int = 0, virtual_tokens: float = 0.0, work: float = 0.0
    ) -> None:
        """`left` went, and were charged `virtual_tokens`, since the last call, while the queue was as `queued` says;
        `work` is without what was cached.
        """
        elapsed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        if not queued:
            return
        kept = math.exp(-elapsed_s / _RATE_WINDOW_S)
        self._busy_s = self._busy_s * kept + elapsed_s
        self._left = self._left * kept + left
        self._virtual_tokens = self._virtual_tokens * kept + virtual_tokens
        self._work = self._work * kept + work

    @property
    def per_s(self) -> float | None:
        """None before a second of queueing was seen."""
        return None if self._busy_s < 1.0 else self._left / self._busy_s

    @property
    def virtual_tokens_per_s(self) -> float:
        """0 before a second of queueing was seen."""
        return 0.0 if self._busy_s < 1.0 else self._virtual_tokens / self._busy_s

    @property
    def work_per_s(self) -> float | None:
        """None before a second of queueing was seen, and a few requests that passed: asks are shed by it."""
        return self._work / self._busy_s if self._busy_s >= 1.0 and self._left >= _FEW_REQUESTS else None


class WakeTimes:
    """Learns how long a model takes from its first held request to its first ready unit: as units tell where it sleeps
    in host memory, as it took before where it must be read.
    """

    def __init__(self) -> None:
        self._means_s: dict[str, float] = {}
        self._since_s: dict[str, float] = {}
        self._copies_s: Mapping[str, float] = {}
        self._copying_s: dict[str, float] = {}  # of those under way: they sleep no more

    def asleep(self, copies_s: Mapping[str, float]) -> None:
        """Models in host memory, with the seconds that their way back takes."""
        self._copies_s = copies_s

    def held(self, model: str, now_s: float) -> None:
        if model not in self._since_s:
            self._since_s[model] = now_s
            if model in self._copies_s:
                self._copying_s[model] = self._copies_s[model]

    def ready(self, model: str, now_s: float) -> None:
        since_s = self._since_s.pop(model, None)
        was_copied = self._copying_s.pop(model, None) is not None
        if since_s is not None and not was_copied and now_s - since_s <= _LONGEST_WAKE_S:
            mean_s = self._means_s.get(model, now_s - since_s)
            self._means_s[model] = mean_s + _WAKE_SMOOTHING * (now_s - since_s - mean_s)

    def waiting(self) -> frozenset[str]:
        return frozenset(self._since_s)

    def left_s(self, model: str, now_s: float) -> float:
        """Returns the time until the model should be ready, if its wake is under way; after its time has come, another
        such time.
        """
        copy_s = self._copying_s.get(model, self._copies_s.get(model))
        expected_s = self._means_s.get(model, _PRIOR_WAKE_S) if copy_s is None else _COPY_LAG_S + copy_s
        waited_s = now_s - self._since_s.get(model, now_s)
        return expected_s - waited_s if waited_s < expected_s else expected_s
