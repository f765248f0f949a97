"""Forecasts how a model's queue moves, and when a request in it can expect its first token."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from router.admission.learned_estimates import DrainRate

LATE_SHARE = 0.05
"""Of the service, for late asks while there are others: nothing waits for ever."""

_ARRIVAL_WINDOW_S = 10.0
_MOST_WINDOWS = 20.0
_LAG_SMOOTHING = 0.125
_LAG_DEVIATIONS = 2.0
_LAG_OUTLIER_DEVIATIONS = 4.0
_LEAST_LAG_S = 0.005
_SHORT_PREFILL_S = 0.1


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
