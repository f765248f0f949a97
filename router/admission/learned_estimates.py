"""Learns from the requests that pass: lengths of answers, the time of a wake, how a queue moves, and so when a request
in it can expect its first token.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LATE_SHARE = 0.05
"""Of the service, for late asks while there are others: nothing waits for ever."""

_RATE_WINDOW_S = 30.0
_FEW_REQUESTS = 5.0
_LENGTH_SMOOTHING = 0.05
_WAKE_SMOOTHING = 0.3
_PRIOR_OUTPUT_TOKENS = 256.0
_PRIOR_WAKE_S = 10.0
_COPY_LAG_S = 2.0  # from a request to the lease that wakes its model, and from a ready unit to a view that shows it
_LONGEST_WAKE_S = 600.0  # what took longer was not a wake: nobody waited any more
_ARRIVAL_WINDOW_S = 10.0
_MOST_WINDOWS = 20.0
_LAG_SMOOTHING = 0.125
_LAG_DEVIATIONS = 2.0
_LAG_OUTLIER_DEVIATIONS = 4.0
_LEAST_LAG_S = 0.005
_SHORT_PREFILL_S = 0.1


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


class ArrivalRate:
    """Work that is asked for per second, over the last ten seconds or so, by the size of the asks."""

    def __init__(self) -> None:
        self._work: dict[int, float] = {}  # as if all had come at `_since_s`: what comes later counts more
        self._since_s = 0.0

    def asked(self, now_s: float, work: float) -> None:
        elapsed = (now_s - self._since_s) / _ARRIVAL_WINDOW_S
        if elapsed > _MOST_WINDOWS:
            kept = math.exp(-elapsed)
            self._work = {size: kept * of_size for size, of_size in self._work.items()}
            self._since_s, elapsed = now_s, 0.0
        size = math.frexp(work)[1]
        self._work[size] = self._work.get(size, 0.0) + work * math.exp(elapsed)

    def per_s(self, now_s: float, *, below: float = math.inf) -> float:
        """`below`: only of asks that are smaller by their power of two."""
        size = math.frexp(below)[1] if below < math.inf else 1 << 16
        kept = math.exp((self._since_s - now_s) / _ARRIVAL_WINDOW_S)
        return kept / _ARRIVAL_WINDOW_S * sum(w for s, w in self._work.items() if s < size)


class FirstTokenLag:
    """Says how much later than its predicted prefill a first token came, counted from admission: prefills ahead, decode
    beside it, the network. Mean plus deviations, as TCP's retransmission timer does (RFC 6298); a single outlier counts
    as four deviations.
    """

    def __init__(self) -> None:
        self._mean_s: float | None = None
        self._deviation_s = 0.0

    def note(self, lag_s: float) -> None:
        if self._mean_s is None:
            self._mean_s, self._deviation_s = lag_s, abs(lag_s) / 2
            return
        most_s = _LAG_OUTLIER_DEVIATIONS * max(self._deviation_s, _LEAST_LAG_S)
        error_s = max(-most_s, min(most_s, lag_s - self._mean_s))
        self._deviation_s += 2 * _LAG_SMOOTHING * (abs(error_s) - self._deviation_s)
        self._mean_s += _LAG_SMOOTHING * error_s

    @property
    def expected_s(self) -> float:
        """Returns the lag that most first tokens keep; 0 before the first."""
        return 0.0 if self._mean_s is None else max(0.0, self._mean_s + _LAG_DEVIATIONS * self._deviation_s)


class FirstTokenLags:
    """Keeps lags by the length of the prefill: a long one is overtaken on the unit, and says nothing about short
    ones.
    """

    def __init__(self) -> None:
        self._of_size: dict[int, FirstTokenLag] = {}

    def note(self, prefill_s: float, lag_s: float) -> None:
        size = _size_class(prefill_s)
        lag = self._of_size.get(size)
        if lag is None:
            lag = self._of_size[size] = FirstTokenLag()
        lag.note(lag_s)

    def expected_s(self, prefill_s: float) -> float:
        lag = self._of_size.get(_size_class(prefill_s))
        return 0.0 if lag is None else lag.expected_s


def _size_class(prefill_s: float) -> int:
    return max(0, math.frexp(prefill_s / _SHORT_PREFILL_S)[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueForecast:
    """Forecasts how a model's queue moves now: work that passes it per second while there is a queue (None: not known),
    what is asked for, in all and by tenant, and how long after its turn and its prefill a request has its first token.
    """

    now_s: float = 0.0
    served_per_s: float | None = None
    asked: ArrivalRate | None = None
    asked_by: Mapping[str, ArrivalRate] = field(default_factory=dict)
    lags: FirstTokenLags | None = None

    def lag_s(self, prefill_s: float) -> float:
        return 0.0 if self.lags is None else self.lags.expected_s(prefill_s)

    def works_s(self, tenant: str, works: Sequence[float], share: float) -> list[float] | None:
        """Returns how long a tenant's asks take the queue if they give way to smaller ones of the same tenant that are
        still to come: w / (mu - lambda(<w)), as for the shortest job first. `share` is the tenant's of the service.
        """
        if self.served_per_s is None or share <= 0.0:
            return None
        per_s = self.served_per_s * share
        asked = self.asked_by.get(tenant)
        if asked is None:
            return [work / per_s for work in works]
        least_per_s = LATE_SHARE * per_s
        return [work / max(least_per_s, per_s - asked.per_s(self.now_s, below=work)) for work in works]

    def late_wait_s(self, open_work: float, late_work: float) -> float:
        """Returns the time until the last of `late_work` has its turn: in what newcomers leave over, after `open_work`,
        or, if that is little, in the share that late requests have in any case. 0 while nothing is known.
        """
        if self.served_per_s is None:
            return 0.0
        spare_per_s = self.served_per_s - (0.0 if self.asked is None else self.asked.per_s(self.now_s))
        by_share_s = late_work / (LATE_SHARE * self.served_per_s)
        return by_share_s if spare_per_s <= 0 else min(by_share_s, (open_work + late_work) / spare_per_s)


class QueueForecaster:
    """Forecasts the queue of one model."""

    def __init__(self) -> None:
        self.drain = DrainRate()
        self.lags = FirstTokenLags()
        self._asked = ArrivalRate()
        self._asked_by: dict[str, ArrivalRate] = {}

    def asked(self, tenant: str, work: float, now_s: float) -> None:
        of_tenant = self._asked_by.get(tenant)
        if of_tenant is None:
            of_tenant = self._asked_by[tenant] = ArrivalRate()
        of_tenant.asked(now_s, work)
        self._asked.asked(now_s, work)

    def forget_idle(self, now_s: float) -> None:
        self._asked_by = {tenant: asked for tenant, asked in self._asked_by.items() if asked.per_s(now_s) > 1.0}

    def pace(self, now_s: float) -> QueueForecast:
        return QueueForecast(
            now_s=now_s,
            served_per_s=self.drain.work_per_s,
            asked=self._asked,
            asked_by=self._asked_by,
            lags=self.lags,
        )
