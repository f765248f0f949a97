"""A trace: requests in order of arrival, and what is known about all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from traces.record import TraceRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """`block_tokens` is the size of the blocks that `prefix_block_hashes` name; None where no record has any.

    `has_arrivals` is False for sets of lengths without times: every `arrival_s` is 0 then.
    """

    name: str
    records: tuple[TraceRecord, ...]
    block_tokens: int | None = None
    has_arrivals: bool = True
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def span_s(self) -> float:
        """Time from the first arrival to the last."""
        return self.records[-1].arrival_s - self.records[0].arrival_s if self.records else 0.0
