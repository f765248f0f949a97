"""Requests of a benchmark run: when they are sent, and when their tokens came."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

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
