"""Figures of one point of the overload benchmark, whichever engine has run it."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from load.request_times import RequestTimes


def shares_of(judged: Sequence[RequestTimes], *, turned_away: int = 0) -> dict[str, Any]:
    """None where there is nothing to judge. Gaps and second tokens that never came are not counted."""
    firsts_s = [times.ttft_s for times in judged]
    all_gaps_s = [(times, times.gaps_s) for times in judged]
    gaps = sum(len(gaps_s) for _, gaps_s in all_gaps_s)
    seconds = [gaps_s[0] <= times.slo.tbt_s for times, gaps_s in all_gaps_s if gaps_s]
    return {
        "request_attainment": _share(sum(times.is_in_time for times in judged), len(judged)),
        "ttft_attainment": _share(
            sum(first_s <= times.slo.ttft_s for first_s, times in zip(firsts_s, judged, strict=True)), len(judged)
        ),
        "second_token_attainment": _share(sum(seconds), len(seconds)),
        "tbt_attainment": _share(sum(times.gaps_within for times in judged), gaps),
        "turned_away": _share(turned_away, len(judged)),
        "ttft_p50_s": _finite(statistics.median(firsts_s)) if firsts_s else None,
    }


def with_kept_shares(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """`kept`: the goodput as a share of the policy's best at any load."""
    best: dict[tuple[str, str, str], float] = {}
    for row in rows:
        best[_curve(row)] = max(best.get(_curve(row), 0.0), row["goodput_per_s"])
    return [
        row | {"kept": round(row["goodput_per_s"] / best[_curve(row)], 4) if best[_curve(row)] else None}
        for row in rows
    ]


def _curve(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["workload"], row["through"], row["policy"]


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _finite(seconds: float) -> float | None:
    return round(seconds, 4) if math.isfinite(seconds) else None
