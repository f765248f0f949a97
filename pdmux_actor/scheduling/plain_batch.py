"""Batches of which each step is as plain as the last: what a virtual time need not do token by token.

None of their sequences ends, is late or asks for more than its tokens. Tokens and times are brought up to date
once, when something else is about to happen; until then only the lengths of the contexts, and what the queue counts,
are right.
"""

from collections.abc import Sequence, Set
from typing import Protocol, Self

import msgspec

from pdmux_actor.messages import SampledToken
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import TokenSequence


class TokenSource(Protocol):
    def next_tokens(self, sequence: TokenSequence, count: int) -> Sequence[SampledToken]: ...

    def may_say(self, token_ids: Set[int]) -> bool:
        """Says whether any of these may be a token that it samples."""
        ...


class StretchTokens(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Holds what a run brought: each of the requests `counts[i]` tokens at `times_s[i]`."""

    request_ids: tuple[str, ...]
    times_s: Sequence[float]
    counts: Sequence[int]


class PlainBatch:
    """The running sequences of a queue, for as long as `bear` says that they stay plain."""

    def __init__(self, queue: ModelQueue) -> None:
        max_len, known, running = queue.max_len, queue.context_tokens, queue.running
        self.queue = queue
        self._tokens_left = min([min(s.most_tokens, max_len) - n for s, n in zip(running, known, strict=True)])
        self._tbt_s = min([s.tbt_s for s in running])
        self._last_s = min([s.last_token_s or 0.0 for s in running])
        self._num_counted = len([s for s in running if not s.gives_way])  # as in ModelQueue.note_gaps
        self._times_s: list[float] = []
        self._counts: list[int] = []

    @classmethod
    def of(cls, queue: ModelQueue, source: TokenSource) -> Self | None:
        """None: one of its sequences may stop at a token, or wants more than tokens, or nobody runs."""
        if not queue.running or queue.removing or queue.adapter_counts or source.may_say(queue.info.eos_token_ids):
            return None
        for sequence in queue.running:
            told = sequence.last_token_s is not None and sequence.pending_finish is None
            if not told or not sequence.is_plain or sequence.stop_token_ids:
                return None
        return cls(queue)

    def bear(self, steps: int, end_s: float) -> bool:
        """Says whether all go on after a launch of so many steps that ends then, and none had to wait too long."""
        return steps < self._tokens_left and end_s - self._last_s <= self._tbt_s

    def land(self, steps: int, end_s: float) -> None:
        """The launch has ended."""
        self._times_s.append(end_s)
        self._counts.append(steps)
        self._tokens_left -= steps
        self._last_s = end_s
        queue = self.queue
        queue.note_contexts([n + steps for n in queue.context_tokens], end_s)
        counts, num_gaps = queue.counts, steps * self._num_counted
        counts.output_tokens += steps * len(queue.running)
        counts.gaps += num_gaps
        counts.gaps_met += num_gaps

    def bring_up_to_date(self, source: TokenSource) -> StretchTokens | None:
        """Gives the sequences what has landed since the last call. Returns it; None: nothing has."""
        if not self._times_s:
            return None
        queue, num_tokens, last_s = self.queue, sum(self._counts), self._times_s[-1]
        contexts = list(queue.context_tokens)
        for sequence in queue.running:
            sequence.token_ids += [token.token_id for token in source.next_tokens(sequence, num_tokens)]
            sequence.num_computed_tokens = len(sequence.token_ids) - 1
            sequence.last_token_s = last_s
        queue.note_contexts(contexts, last_s)
        told = StretchTokens(request_ids=queue.running_ids, times_s=self._times_s, counts=self._counts)
        self._times_s, self._counts = [], []
        return told
