"""Requests of a simulated fleet: those of a stream that have not come yet, read a little ahead, and what becomes of
each from its arrival on.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from deploy.simulation.gateway import Stay
from pdmux_actor.messages import GenerateRequest
from router.serving.unit_losses import UnitLosses
from traces.outcome import Ending, RequestOutcome
from traces.record import TraceRecord


class ComingRequests:
    def __init__(self, records: Iterator[TraceRecord]) -> None:
        """Times ascend, and every record names its model."""
        self._records = enumerate(records)
        self._read: deque[tuple[int, TraceRecord]] = deque()
        self._times_s: dict[str, deque[float]] = {}  # of what has been read, by model
        self._known_until_s = float("-inf")  # all that come before have been read

    def first(self) -> tuple[int, TraceRecord] | None:
        """Returns the next request and its number, None at the end of the stream."""
        if not self._read:
            self._read_one()
        return self._read[0] if self._read else None

    def take_first(self) -> None:
        """It has come."""
        _, record = self._read.popleft()
        self._times_s[record.model or ""].popleft()

    def next_s(self, models: Iterable[str], until_s: float) -> float:
        """Returns when the next request for one of these models comes, or `until_s` if none does before."""
        while self._known_until_s < until_s:
            self._read_one()
        for model in models:
            times_s = self._times_s.get(model)
            if times_s and times_s[0] < until_s:
                until_s = times_s[0]
        return until_s

    def _read_one(self) -> None:
        following = next(self._records, None)
        if following is None:
            self._known_until_s = float("inf")
            return
        _, record = following
        self._read.append(following)
        self._times_s.setdefault(record.model or "", deque()).append(record.arrival_s)
        self._known_until_s = record.arrival_s


_FILLER = 3
_DIGITS = 4
_FIRST = 4  # smaller ids are the filler and the two marks
_BLOCK_MARK, _OWN_MARK = 1, 2


def simulated_prompt(record: TraceRecord, *, index: int, block_tokens: int | None, vocab_size: int) -> tuple[int, ...]:
    """`record.input_tokens` ids. A block's first ids spell its hash, those of what no hash covers spell `index`.

    The names of KV rows chain, so two prompts share rows exactly as far as their blocks are the same.

    >>> a = TraceRecord(arrival_s=0, input_tokens=20, output_tokens=1, prefix_block_hashes=(7, 8))
    >>> b = TraceRecord(arrival_s=0, input_tokens=20, output_tokens=1, prefix_block_hashes=(7, 9))
    >>> one, two = (simulated_prompt(r, index=0, block_tokens=10, vocab_size=1000) for r in (a, b))
    >>> len(one), one[:10] == two[:10], one[10:] == two[10:]
    (20, True, False)
    """
    num_tokens, base = record.input_tokens, vocab_size - _FIRST
    ids, start = [_FILLER] * num_tokens, 0
    if block_tokens is not None:
        for block in record.prefix_block_hashes:
            _spell(ids, start, min(num_tokens, start + block_tokens), _BLOCK_MARK, block, base)
            start += block_tokens
    _spell(ids, start, num_tokens, _OWN_MARK, index, base)
    return tuple(ids)


def _spell(ids: list[int], start: int, end: int, mark: int, number: int, base: int) -> None:
    """Writes the mark and the digits of the number from `start` on, those that have room before `end`."""
    written = mark
    for place in range(start, min(end, start + 1 + _DIGITS)):
        ids[place] = written
        number, digit = divmod(number, base)
        written = _FIRST + digit


@dataclass(slots=True, eq=False)
class OpenRequest:
    """Admitted, and not ended."""

    request: GenerateRequest
    arrival_s: float
    stay: Stay
    unit_id: str
    first_s: float | None = None
    last_s: float = 0.0
    output_tokens: int = 0
    gaps_s: list[float] = field(default_factory=list)
    homeless_since_s: float | None = None
    losses: UnitLosses = field(default_factory=UnitLosses)
    tokens_before: int = 0  # that it had when it came to its unit

    def note_loss(self, *, died: bool) -> None:
        """Counts that its unit is gone, dead or not."""
        self.losses.count(is_lost=died, has_died=died, was_served=self.output_tokens > self.tokens_before)

    @property
    def ttft_met(self) -> bool:
        return self.first_s is not None and self.first_s - self.arrival_s <= self.request.slo.ttft_s

    @property
    def tbt_met(self) -> bool:
        return max(self.gaps_s, default=0.0) <= self.request.slo.tbt_s

    def outcome(self, ending: Ending, now_s: float) -> RequestOutcome:
        return RequestOutcome(
            index=int(self.request.request_id),
            model=self.request.model,
            ending=ending,
            scheduled_s=self.arrival_s,
            sent_s=self.arrival_s,
            end_s=now_s,
            ttft_s=None if self.first_s is None else self.first_s - self.arrival_s,
            gaps_s=tuple(self.gaps_s),
            input_tokens=len(self.request.prompt_token_ids),
            requested_tokens=self.request.sampling.max_tokens,
            output_tokens=self.output_tokens,
        )


def rejected(index: int, record: TraceRecord, now_s: float) -> RequestOutcome:
    assert record.model is not None
    return RequestOutcome(
        index=index,
        model=record.model,
        ending=Ending.REJECTED,
        scheduled_s=record.arrival_s,
        sent_s=record.arrival_s,
        end_s=now_s,
        ttft_s=None,
        gaps_s=(),
        input_tokens=record.input_tokens,
        requested_tokens=max(1, record.output_tokens),
        output_tokens=0,
    )
