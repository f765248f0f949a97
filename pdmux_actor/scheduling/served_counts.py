"""Defines what is counted of the requests of a model, and of each of its adapters, since it came to the unit."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class ServedCounts:
    """`requests` are those that ended: with their tokens, or late before; `requests_met`, of those, had the first token
    and every gap in time. `first_tokens_met` came within the request's TTFT target; `ttfts_of_target` sums TTFT over
    that target.
    """

    prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    first_tokens: int = 0
    first_tokens_met: int = 0
    ttfts_of_target: float = 0.0
    gaps: int = 0
    gaps_met: int = 0
    requests: int = 0
    requests_met: int = 0

    def add(self, other: "ServedCounts", times: int = 1) -> None:
        self.prompt_tokens += times * other.prompt_tokens
        self.prefix_hit_tokens += times * other.prefix_hit_tokens
        self.output_tokens += times * other.output_tokens
        self.preemptions += times * other.preemptions
        self.first_tokens += times * other.first_tokens
        self.first_tokens_met += times * other.first_tokens_met
        self.ttfts_of_target += times * other.ttfts_of_target
        self.gaps += times * other.gaps
        self.gaps_met += times * other.gaps_met
        self.requests += times * other.requests
        self.requests_met += times * other.requests_met

    def without(self, others: Iterable["ServedCounts"]) -> "ServedCounts":
        """Returns what is left when what others have counted is taken away."""
        left = ServedCounts()
        left.add(self)
        for other in others:
            left.add(other, -1)
        return left
