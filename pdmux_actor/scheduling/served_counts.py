"""Defines what is counted of the requests of a model, and of each of its adapters, since it came to the unit."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class ServedCounts:
    """`requests` are those that ended: with their tokens, or late before; `requests_met`, of those, had the first token
    and every gap in time. `first_tokens_met` came within the request's TTFT target.
    """

    prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    first_tokens: int = 0
    first_tokens_met: int = 0
    gaps: int = 0
    gaps_met: int = 0
    requests: int = 0
    requests_met: int = 0

    def add(self, other: "ServedCounts") -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
