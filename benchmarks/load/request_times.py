"""Requests of a benchmark run: when they are sent, when their tokens came, and figures of a point of overload."""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdmux_actor.messages import FinishReason, GenerateRequest, Slo
from traces.timeliness import SloTarget, is_in_time


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """`at_s` counts from the start of the run."""

    at_s: float
    request: GenerateRequest


@dataclass(slots=True)
class RequestTimes:
    """`due_s` is when the workload wanted it sent: waiting of the client itself counts, too."""

    model: str
    slo: Slo
    due_s: float
    num_tokens_wanted: int
    token_times_s: list[float] = field(default_factory=list)
    finish: FinishReason | None = None

    @property
    def ttft_s(self) -> float:
        return self.token_times_s[0] - self.due_s if self.token_times_s else float("inf")

    @property
    def gaps_s(self) -> list[float]:
        times = self.token_times_s
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    @property
    def gaps_within(self) -> int:
        return sum(gap <= self.slo.tbt_s for gap in self.gaps_s)

    @property
    def is_in_time(self) -> bool:
        """All of its tokens have come, each within its target."""
        complete = len(self.token_times_s) >= self.num_tokens_wanted
        return complete and is_in_time(
            self.ttft_s, self.gaps_s, SloTarget(ttft_s=self.slo.ttft_s, tbt_s=self.slo.tbt_s)
        )

    def is_late(self, now_s: float) -> bool:
        """What is still to come cannot make it a request in time: a token is overdue."""
        if not self.token_times_s:
            return now_s > self.due_s + self.slo.ttft_s
        return now_s > self.token_times_s[-1] + self.slo.tbt_s and self.finish is None


def times_of(requests: Iterable[TimedRequest], started_s: float) -> dict[str, RequestTimes]:
    """Of a run that begins, by request id."""
    return {
        timed.request.request_id: RequestTimes(
            timed.request.model, timed.request.slo, started_s + timed.at_s, timed.request.sampling.max_tokens
        )
        for timed in requests
    }


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
