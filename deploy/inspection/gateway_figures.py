"""Reads what a fleet's gateways measured lately, by model: the difference of two readings of their metrics."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from deploy.bounded_transport import bounded_get
from deploy.environment import bearer_headers
from deploy.inspection.fleet_report import path_of

_TIMEOUT_S = 5.0
_TTFT = "muxfleet_time_to_first_token_seconds"
_GAP = "muxfleet_inter_token_latency_seconds"
_QUEUED = "muxfleet_generations_queued"

Buckets = Mapping[float, float]
"""By upper bound, how many observations were not above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Holds one reading of all gateways' metrics. By model."""

    taken_s: float
    ttft: Mapping[str, Buckets]
    gap: Mapping[str, Buckets]
    queued: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """None: nothing was observed."""

    queued: int
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tbt_p50_s: float | None
    tbt_p99_s: float | None


def read_gateways(url: str, now_s: float) -> Reading | None:
    """None: its metrics are not to be had."""
    try:
        answer = bounded_get(path_of(url, "/metrics"), headers=bearer_headers(), timeout_s=_TIMEOUT_S)
        return reading(answer.raise_for_status().text, now_s)
    except (httpx.HTTPError, ValueError):
        return None


def reading(exposition: str, now_s: float) -> Reading:
    """Raises ValueError: it is not what Prometheus reads."""
    buckets: dict[str, dict[str, dict[float, float]]] = {_TTFT: {}, _GAP: {}}
    queued: dict[str, int] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            model = sample.labels.get("model", "")
            if sample.name == _QUEUED:
                queued[model] = queued.get(model, 0) + int(sample.value)
            elif sample.name.removesuffix("_bucket") in buckets and "le" in sample.labels:
                of_model = buckets[sample.name.removesuffix("_bucket")].setdefault(model, {})
                bound = float(sample.labels["le"])
                of_model[bound] = of_model.get(bound, 0.0) + sample.value
    return Reading(taken_s=now_s, ttft=buckets[_TTFT], gap=buckets[_GAP], queued=queued)


class RecentFigures:
    """Holds figures of the last `window_s` or, before so much has passed, since the gateways started."""

    def __init__(self, *, window_s: float = 60.0) -> None:
        self._window_s = window_s
        self._readings: deque[Reading] = deque()

    def add(self, new: Reading) -> Mapping[str, ModelFigures]:
        self._readings.append(new)
        while len(self._readings) > 1 and new.taken_s - self._readings[1].taken_s >= self._window_s:
            self._readings.popleft()
        oldest = self._readings[0]
        is_whole_window = new.taken_s - oldest.taken_s >= self._window_s
        models = {*new.ttft, *new.gap, *new.queued}
        found = {}
        for model in models:
            ttft = _since(new.ttft.get(model, {}), oldest.ttft.get(model, {}) if is_whole_window else {})
            gap = _since(new.gap.get(model, {}), oldest.gap.get(model, {}) if is_whole_window else {})
            found[model] = ModelFigures(
                queued=new.queued.get(model, 0),
                ttft_p50_s=quantile(ttft, 0.5),
                ttft_p99_s=quantile(ttft, 0.99),
                tbt_p50_s=quantile(gap, 0.5),
                tbt_p99_s=quantile(gap, 0.99),
            )
        return found


def quantile(buckets: Buckets, share: float) -> float | None:
    """Interpolates as Prometheus' histogram_quantile: linear inside a bucket; above the last finite bound it is that
    bound.
    """
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    rank = share * buckets[bounds[-1]]
    below_bound, below = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= rank and bound != float("inf"):
            inside = buckets[bound] - below
            return bound if inside <= 0 else below_bound + (bound - below_bound) * (rank - below) / inside
        if bound != float("inf"):
            below_bound, below = bound, buckets[bound]
    return below_bound


def _since(new: Buckets, old: Buckets) -> Buckets:
    """A gateway that was replaced meanwhile counts from 0 again: then all that it has counted."""
    difference = {bound: count - old.get(bound, 0.0) for bound, count in new.items()}
    return new if any(count < 0 for count in difference.values()) else difference
