"""Outcomes of a replay, summed up per model and over all."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from traces.outcome import Ending, RequestOutcome
from traces.timeliness import SloTarget, is_in_time

GAP_SHARE = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """None where nothing was measured."""

    p50: float | None
    p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one model, or of all. `requests` splits into finished, rejected, failed and lost.

    Shares are of the requests with a target, None without any: `request_attainment` of those in time (first token and
    every gap, `is_in_time`), `slo_attainment` of those with 99 % of their gaps in time (`attains`), `ttft_attainment`
    of those with a timely first token; `tbt_attainment` is the share of their gaps. `output_tokens_per_s`,
    `requests_in_time_per_s` and `goodput_per_s` (as `slo_attainment` counts) are over the whole replay, from the first
    request sent to the last answer, the same window for every model. `send_lag_s` says how late the client itself was:
    times measured while it lags are the client's, not the server's.
    """

    requests: int
    finished: int
    rejected: int
    failed: int
    lost: int
    ttft_s: Percentiles
    tbt_s: Percentiles
    slo_attainment: float | None
    request_attainment: float | None
    ttft_attainment: float | None
    tbt_attainment: float | None
    output_tokens_per_s: float | None
    goodput_per_s: float | None
    requests_in_time_per_s: float | None
    send_lag_s: Percentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    models: Mapping[str, Figures]
    total: Figures
    duration_s: float

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON: {"models": {id: {...}}, "total": {...}}."""
        return {
            "models": {model: asdict(figures) for model, figures in self.models.items()},
            "total": asdict(self.total),
        }

    def rows(self) -> Iterator[tuple[str, Figures]]:
        """One row per model, then the total: what a table shows."""
        yield from self.models.items()
        yield "total", self.total


def was_in_time(outcome: RequestOutcome, target: SloTarget) -> bool:
    """It finished, and `is_in_time` holds of its times. A lost, rejected or failed request was not."""
    return outcome.ending is Ending.FINISHED and is_in_time(outcome.ttft_s, outcome.gaps_s, target)


def attains(outcome: RequestOutcome, target: SloTarget) -> bool:
    """It finished, its first token came in time, and so did at least 99 % of its gaps.

    A lost, rejected or failed request does not attain. A request with no gap is judged by its first token alone.
    """
    if outcome.ending is not Ending.FINISHED or outcome.ttft_s is None or outcome.ttft_s > target.ttft_s:
        return False
    in_time = sum(gap_s <= target.tbt_s for gap_s in outcome.gaps_s)
    return in_time >= GAP_SHARE * len(outcome.gaps_s)


def summarize(outcomes: Sequence[RequestOutcome], targets: Mapping[str, SloTarget]) -> Summary:
    """Models without a request but with a target appear with zeros."""
    duration_s = 0.0
    if outcomes:
        answered = [o for o in outcomes if o.ending is not Ending.LOST] or outcomes
        duration_s = max(o.end_s for o in answered) - min(o.sent_s for o in outcomes)
    groups: dict[str, list[RequestOutcome]] = {model: [] for model in targets}
    for outcome in outcomes:
        groups.setdefault(outcome.model, []).append(outcome)
    return Summary(
        models={model: _figures(group, targets, duration_s) for model, group in groups.items()},
        total=_figures(outcomes, targets, duration_s),
        duration_s=duration_s,
    )


def distributions(outcomes: Sequence[RequestOutcome], percents: Sequence[float]) -> dict[str, list[float]]:
    """Returns the times at these percents of what was measured, of all models together."""
    times = {
        "ttft_s": [o.ttft_s for o in outcomes if o.ttft_s is not None],
        "tbt_s": [gap_s for o in outcomes for gap_s in o.gaps_s],
    }
    found = {
        name: [float(t) for t in np.percentile(measured, percents)] for name, measured in times.items() if measured
    }
    return {"percents": list(percents), **found}


def _figures(outcomes: Sequence[RequestOutcome], targets: Mapping[str, SloTarget], duration_s: float) -> Figures:
    aimed = [(outcome, targets[outcome.model]) for outcome in outcomes if outcome.model in targets]
    attained = sum(attains(outcome, target) for outcome, target in aimed)
    in_time = sum(was_in_time(outcome, target) for outcome, target in aimed)
    first_in_time = sum(o.ttft_s is not None and o.ttft_s <= target.ttft_s for o, target in aimed)
    gaps = [gap_s <= target.tbt_s for outcome, target in aimed for gap_s in outcome.gaps_s]
    return Figures(
        requests=len(outcomes),
        finished=_count(outcomes, Ending.FINISHED),
        rejected=_count(outcomes, Ending.REJECTED),
        failed=_count(outcomes, Ending.FAILED),
        lost=_count(outcomes, Ending.LOST),
        ttft_s=_percentiles([o.ttft_s for o in outcomes if o.ttft_s is not None]),
        tbt_s=_percentiles([gap_s for o in outcomes for gap_s in o.gaps_s]),
        slo_attainment=_share(attained, len(aimed)),
        request_attainment=_share(in_time, len(aimed)),
        ttft_attainment=_share(first_in_time, len(aimed)),
        tbt_attainment=_share(sum(gaps), len(gaps)),
        output_tokens_per_s=sum(o.output_tokens for o in outcomes) / duration_s if duration_s > 0 else None,
        goodput_per_s=attained / duration_s if aimed and duration_s > 0 else None,
        requests_in_time_per_s=in_time / duration_s if aimed and duration_s > 0 else None,
        send_lag_s=_percentiles([max(0.0, o.sent_s - o.scheduled_s) for o in outcomes]),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _count(outcomes: Sequence[RequestOutcome], ending: Ending) -> int:
    return sum(outcome.ending is ending for outcome in outcomes)


def _percentiles(values: Sequence[float]) -> Percentiles:
    if not values:
        return Percentiles(p50=None, p99=None)
    p50, p99 = np.percentile(values, [50, 99])
    return Percentiles(p50=float(p50), p99=float(p99))
