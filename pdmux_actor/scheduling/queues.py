"""One model's sequences inside a unit. Policies read it, the scheduler alone changes it."""

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pdmux_actor.kv.block_pool import BlockPool
from pdmux_actor.kv.prefix_cache import HashedPieces
from pdmux_actor.messages import LEAST_TARGET_S, FinishReason
from pdmux_actor.model_info import ModelInfo, longest_sequence_tokens
from pdmux_actor.scheduling.sequence import Precedence, SequenceStatus, TbtTarget, TokenSequence
from pdmux_actor.scheduling.served_counts import ServedCounts
from profiler.latency import ChunkShape

_BACKGROUND_WEIGHT = 0.01  # of a sequence that gives way, beside those that do not


@dataclass(slots=True, eq=False)
class ModelQueue:
    """`partial` sequences hold KV for a part of their prompt (chunked prefill); `running` is ordered by arrival."""

    info: ModelInfo
    pool: BlockPool
    model: str = field(init=False)
    caches_prefixes: bool = True
    waiting: deque[TokenSequence] = field(default_factory=deque)
    partial: deque[TokenSequence] = field(default_factory=deque)
    running: list[TokenSequence] = field(default_factory=list)
    num_prefilling: int = 0  # sequences inside prefill batches
    removing: bool = False
    counts: ServedCounts = field(default_factory=ServedCounts)  # of its adapters, too
    adapter_counts: dict[str, ServedCounts] = field(default_factory=dict)
    former_counts: ServedCounts | None = None  # of the adapters that have left, together
    room: int | None = None  # sequences that may be in, where the policy wants fewer than the settings
    outgrown: list[TokenSequence] = field(default_factory=list)  # preempted, and longer than the unit takes by now
    # Of `running`, until a sequence comes, goes or gets a token: policies ask several times per decision.
    _context_tokens: list[int] | None = field(default=None, init=False, repr=False)
    _tightest_tbt_s: float | None = field(default=None, init=False, repr=False)
    _pieces: HashedPieces = field(default_factory=HashedPieces, init=False, repr=False)
    _tbt_targets: Sequence[TbtTarget] | None = field(default=None, init=False, repr=False)
    _running_ids: tuple[str, ...] | None = field(default=None, init=False, repr=False)
    _told_s: float | None = field(default=None, init=False, repr=False)  # when all had their last token, if together

    def __post_init__(self) -> None:
        self.model = self.info.model

    @property
    def num_resident(self) -> int:
        """Sequences that hold KV."""
        return self.num_prefilling + len(self.partial) + len(self.running)

    @property
    def tightest_tbt_s(self) -> float:
        if self._tightest_tbt_s is None:
            self._tightest_tbt_s = min([s.request.slo.tbt_s for s in self.running], default=float("inf"))
        return self._tightest_tbt_s

    @property
    def tbt_targets(self) -> Sequence[TbtTarget]:
        """The distinct targets of running sequences, the tightest first."""
        if self._tbt_targets is None:
            on_time: dict[float, float] = {}
            missed: dict[float, float] = {}
            for sequence in self.running:
                counts = missed if sequence.is_late else on_time
                weight = _BACKGROUND_WEIGHT if sequence.gives_way else 1
                counts[sequence.request.slo.tbt_s] = counts.get(sequence.request.slo.tbt_s, 0) + weight
            self._tbt_targets = [
                TbtTarget(tbt_s, on_time.get(tbt_s, 0), missed.get(tbt_s, 0)) for tbt_s in sorted({*on_time, *missed})
            ]
        return self._tbt_targets

    def wait_s(self, now_s: float) -> float:
        """Returns how long the running sequence that waits longest has waited for its next token."""
        if self._told_s is not None:
            return now_s - self._told_s
        return now_s - min([s.last_token_s for s in self.running if s.last_token_s is not None], default=now_s)

    def places(self, max_running_sequences: int) -> int:
        """Sequences that may hold KV at once."""
        return max_running_sequences if self.room is None else min(self.room, max_running_sequences)

    @property
    def context_tokens(self) -> Sequence[int]:
        if self._context_tokens is None:
            self._context_tokens = [len(s.token_ids) for s in self.running]
        return self._context_tokens

    @property
    def running_ids(self) -> tuple[str, ...]:
        """The requests of `running`, in its order."""
        if self._running_ids is None:
            self._running_ids = tuple([s.request.request_id for s in self.running])
        return self._running_ids

    @property
    def is_empty(self) -> bool:
        return not self.waiting and self.num_resident == 0

    def sequences(self) -> Iterator[TokenSequence]:
        """All but those inside a prefill batch."""
        yield from self.waiting
        yield from self.partial
        yield from self.running

    @property
    def share_of_quota_used(self) -> float:
        usage = self.pool.usage(self.model)
        return usage.used_blocks / usage.quota_blocks if usage.quota_blocks else 0.0

    @property
    def borrowed_blocks(self) -> int:
        return self.pool.borrowed_blocks(self.model)

    @property
    def max_len(self) -> int:
        """Tokens of the longest sequence that the unit has promised to take: as the leased quota and the context admit.

        Transfers change no promise: a model keeps `promised_blocks` of its quota, whatever moves.
        """
        return longest_sequence_tokens(self.info, self.pool.leased_blocks(self.model))

    @property
    def promised_blocks(self) -> int:
        """Returns what the longest promised sequence takes; never more than is leased."""
        return self.rows_for(self.max_len) * self.info.geometry.blocks_per_row

    def lacks_quota(self, used_share: float) -> bool:
        """Prompts wait, and the model uses that share of its quota, or the first of them does not fit the rest."""
        if not self.waiting:
            return False
        used_blocks, quota_blocks = self.pool.used_blocks(self.model), self.pool.quota_blocks(self.model)
        needed_blocks = self.rows_for(len(self.waiting[0].token_ids)) * self.info.geometry.blocks_per_row
        return used_blocks >= used_share * quota_blocks or used_blocks + needed_blocks > quota_blocks

    def look_ahead_room(self) -> int:
        """Decode steps that every running sequence can take, one after the other, before it meets its maximum length
        or the host must look at its tokens, at least 1.
        """
        if any(s.is_stepwise for s in self.running):
            return 1
        return max(1, self.max_len - max(self.context_tokens, default=0))

    def rows_for(self, num_tokens: int) -> int:
        """Rows that hold the KV of `num_tokens` tokens."""
        return -(-num_tokens // self.info.geometry.tokens_per_row)

    def admits(self, sequence: TokenSequence, *, max_resident: int, watermark: float, num_taken: int = 0) -> bool:
        """Returns whether a waiting sequence may take KV for all its known tokens now.

        The watermark leaves room for running sequences to grow, so that admission does not cause preemption at once.
        `num_taken` sequences are on their way into a batch that is being formed.
        """
        resident = self.num_resident + num_taken
        if resident >= max_resident:
            return False
        spare_rows = int(watermark * self.pool.quota_rows(self.model)) + 1 if resident else 0
        cached = self.cached_prefix(sequence)
        new_rows = self.rows_for(len(sequence.token_ids)) - len(cached)
        return self.pool.can_allocate(self.model, new_rows + spare_rows, reusing=cached)

    def num_that_fit(self, num_tokens: int) -> int:
        """Sequences of so many tokens that could take KV now."""
        return self.pool.allocatable_rows(self.model) // max(1, self.rows_for(num_tokens))

    def cached_prefix(self, sequence: TokenSequence) -> list[int]:
        """Rows that hold the start of a waiting sequence. Its last token is always computed, to sample from; all are,
        where the prompt's own log-probabilities are wanted.

        Policies ask several times per decision: it is looked up again only when the cache has changed, and then only
        what has changed in it.
        """
        if not self._shares_kv(sequence) or sequence.lacks_prompt_logprobs:
            return []
        known, num_tokens = sequence.prefix_match, len(sequence.token_ids) - 1
        per_row = self.info.geometry.tokens_per_row
        if known.version == self.pool.prefix_version(self.model) and known.num_hashes == num_tokens // per_row:
            return known.rows
        hashes = sequence.hashes(num_tokens, per_row, self._pieces)
        return self.pool.match_prefix(self.model, hashes, known)

    def cache_computed(self, sequence: TokenSequence) -> None:
        """Offers the full rows whose tokens all have KV to later sequences."""
        if self._shares_kv(sequence) and sequence.kv_is_sound:
            hashes = sequence.hashes(sequence.num_computed_tokens, self.info.geometry.tokens_per_row, self._pieces)
            self.pool.cache_prefix(self.model, hashes, sequence.rows, sequence.num_reused_rows)

    def _shares_kv(self, sequence: TokenSequence) -> bool:
        limit = self.info.own_kv_beyond_tokens
        return self.caches_prefixes and (limit is None or sequence.num_prompt_tokens <= limit)

    def chunk_shape(self, sequence: TokenSequence) -> ChunkShape:
        """Returns what is left to prefill; of a waiting sequence, behind what the cache holds."""
        known = sequence.num_computed_tokens
        if sequence.status is SequenceStatus.WAITING:
            known = len(self.cached_prefix(sequence)) * self.info.geometry.tokens_per_row
        return ChunkShape(len(sequence.token_ids) - known, known)

    def claimed_blocks(self) -> int:
        """Blocks of its own quota that the next waiting sequence needs and nobody may borrow now."""
        if not self.waiting or self.removing:
            return 0
        needed = (self.rows_for(len(self.waiting[0].token_ids)) + 1) * self.info.geometry.blocks_per_row
        return max(0, min(needed, self.pool.quota_blocks(self.model) - self.pool.used_blocks(self.model)))

    def insert_waiting(self, sequence: TokenSequence, *, target_aware: bool) -> None:
        """Inserts a sequence by precedence. Those that go first do so in the order they have."""

        def place(waiting: TokenSequence) -> tuple[int, float]:
            if waiting.precedence is Precedence.FIRST:
                return (0, 0.0)
            by_due = target_aware and waiting.precedence is Precedence.IN_TIME
            return (waiting.precedence, waiting.first_token_due_s if by_due else waiting.arrival_s)

        insort(self.waiting, sequence, key=place)

    def reorder_waiting(self, *, target_aware: bool) -> None:
        """Another policy takes over: which prompts are late is for it to say."""
        waiting = sorted(self.waiting, key=lambda s: s.precedence is not Precedence.FIRST)
        self.waiting.clear()
        for sequence in waiting:
            if sequence.precedence is Precedence.LATE:
                sequence.precedence = Precedence.IN_TIME
            self.insert_waiting(sequence, target_aware=target_aware)

    def set_precedence(self, sequence: TokenSequence, precedence: Precedence) -> None:
        """Sets the precedence of a waiting sequence, under a policy that is target-aware."""
        if sequence.precedence is not precedence:
            self.waiting.remove(sequence)
            sequence.precedence = precedence
            self.insert_waiting(sequence, target_aware=True)

    def oldest_late(self) -> TokenSequence | None:
        """Returns the late prompt that came first, None where no prompt is late."""
        if not self.waiting or self.waiting[-1].precedence < Precedence.LATE:
            return None
        return next((sequence for sequence in self.waiting if sequence.precedence is Precedence.LATE), None)

    def insert_running(self, sequence: TokenSequence) -> None:
        """Keeps `running` ordered by arrival; a newcomer is nearly always the youngest."""
        position = len(self.running)
        while position and self.running[position - 1].arrival_s > sequence.arrival_s:
            position -= 1
        self.running.insert(position, sequence)
        self._forget_running()

    def replace_running(self, sequences: Iterable[TokenSequence]) -> None:
        self.running = sorted(sequences, key=lambda sequence: sequence.arrival_s)
        self._forget_running()

    def _forget_running(self) -> None:
        self._context_tokens = self._tightest_tbt_s = self._tbt_targets = self._running_ids = self._told_s = None

    def takes(self, sequence: TokenSequence) -> bool:
        """Returns whether the unit has promised to take sequences as long as this one."""
        return 0 < len(sequence.token_ids) < self.max_len

    @property
    def background_victim(self) -> TokenSequence | None:
        """Returns the youngest running sequence that gives way and is not in flight."""
        return next((s for s in reversed(self.running) if s.gives_way and not s.in_flight), None)

    def preempt(self, victim: TokenSequence) -> None:
        """Gives a running sequence's KV back; it is recomputed ahead of everything that waits, or, if it gives way,
        behind it.
        """
        assert not victim.in_flight
        assert victim.status is SequenceStatus.RUNNING
        self.withdraw(victim)
        victim.num_computed_tokens = 0
        victim.status = SequenceStatus.WAITING
        for counts in self.counted(victim):
            counts.preemptions += 1
        if not self.takes(victim):  # the quota was lowered below what it needs
            self.outgrown.append(victim)
        elif victim.gives_way:
            self.insert_waiting(victim, target_aware=False)
        else:
            victim.precedence = Precedence.FIRST
            self.waiting.appendleft(victim)

    def withdraw(self, sequence: TokenSequence) -> None:
        """Out of its list (a batch's sequences are in none), and its KV rows back to the pool."""
        self.discard(sequence)
        self.cache_computed(sequence)
        self.pool.free_rows(self.model, sequence.rows)
        sequence.rows = []

    def discard(self, sequence: TokenSequence) -> None:
        """Takes a sequence out of whichever list holds it."""
        if sequence in self.outgrown:
            self.outgrown.remove(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        elif sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
            self._forget_running()
        elif sequence in self.partial:
            self.partial.remove(sequence)

    def note_longer(self) -> None:
        """Forgets the lengths of contexts: a running sequence has tokens more, whoever knows of them yet."""
        self._context_tokens = None

    def note_contexts(self, context_tokens: list[int], told_s: float) -> None:
        """These are the lengths of `running` by now; all of them had their last token at `told_s`."""
        self._context_tokens, self._told_s = context_tokens, told_s

    def counted(self, sequence: TokenSequence) -> tuple[ServedCounts, ...]:
        """Returns what a sequence counts in."""
        of_adapter = () if sequence.adapter is None else (self.adapter_counts[sequence.request.model],)
        return (self.counts, *of_adapter)

    @property
    def counts_of_others(self) -> list[ServedCounts]:
        """Returns what of `counts` is not the base's own."""
        return [counts for counts in (*self.adapter_counts.values(), self.former_counts) if counts is not None]

    def note_tokens(self, sequence: TokenSequence, num_tokens: int, now_s: float) -> None:
        """Times the tokens that a launch gave a sequence. A launch of several steps makes one gap, and no others. A
        sequence that gives way has no targets to meet.
        """
        counted = self.counted(sequence)
        for counts in counted:
            counts.output_tokens += num_tokens
        previous_s, sequence.last_token_s, self._told_s = sequence.last_token_s, now_s, None
        if sequence.gives_way:
            sequence.first_token_s = now_s if sequence.first_token_s is None else sequence.first_token_s
            return
        slo = sequence.request.slo
        if previous_s is not None:
            late = now_s - previous_s > slo.tbt_s
            for counts in counted:
                counts.gaps += num_tokens
                counts.gaps_met += num_tokens - late
            if late:
                self._note_late(sequence)
        if sequence.first_token_s is None:
            sequence.first_token_s = now_s
            if not sequence.request.output_token_ids:  # its first token came from another unit
                ttft_s = now_s - sequence.arrival_s
                for counts in counted:
                    counts.first_tokens += 1
                    counts.first_tokens_met += ttft_s <= slo.ttft_s
                    counts.ttfts_of_target += ttft_s / max(slo.ttft_s, LEAST_TARGET_S)
                if ttft_s > slo.ttft_s:
                    self._note_late(sequence)

    def note_gaps(self, told: Sequence[TokenSequence], late: Iterable[TokenSequence], num_tokens: int) -> None:
        """Counts as `note_tokens` does, for running sequences which each got so many tokens, `late` ones too late."""
        self._context_tokens = self._told_s = None
        num_gaps = num_tokens * (len(told) - sum([sequence.gives_way for sequence in told]))
        self.counts.output_tokens += num_tokens * len(told)
        self.counts.gaps += num_gaps
        self.counts.gaps_met += num_gaps
        for sequence in told if self.adapter_counts else ():
            for counts in self.counted(sequence)[1:]:
                counts.output_tokens += num_tokens
                counts.gaps += 0 if sequence.gives_way else num_tokens
                counts.gaps_met += 0 if sequence.gives_way else num_tokens
        for sequence in late:
            if not sequence.gives_way:
                for counts in self.counted(sequence):
                    counts.gaps_met -= 1
                self._note_late(sequence)

    def _note_late(self, sequence: TokenSequence) -> None:
        if not sequence.is_late:
            sequence.is_late = True
            self._tbt_targets = None

    def note_end(self, sequence: TokenSequence, finish: FinishReason) -> None:
        """Counts an ended request, in time as `traces.timeliness.is_in_time` has it. What was refused, failed or went
        away counts only if it was late already. Of a request that came from another unit the tokens of this one are
        judged.
        """
        if sequence.gives_way:
            return
        if sequence.is_late or finish in (FinishReason.STOP, FinishReason.LENGTH):
            for counts in self.counted(sequence):
                counts.requests += 1
                counts.requests_met += not sequence.is_late

    def waiting_tokens(self) -> int:
        """Known tokens without KV, of what waits for a prefill."""
        return sum(len(s.token_ids) for s in self.waiting) + sum(s.num_uncomputed_tokens for s in self.partial)

    def check_integrity(self) -> None:
        """Asserts that statuses match the queues and that rows cover the computed tokens."""
        assert all(s.status is SequenceStatus.WAITING and not s.rows for s in self.waiting)
        assert all(s.status is SequenceStatus.PREFILLING for s in self.partial)
        assert all(s.status is SequenceStatus.RUNNING for s in self.running)
        assert all(s.num_uncomputed_tokens == 1 for s in self.running)
        assert self._context_tokens in (None, [len(s.token_ids) for s in self.running]), "lengths are of former tokens"
        assert self._told_s is None or {s.last_token_s for s in self.running} <= {self._told_s}, "some waited longer"
        for sequence in self.sequences():
            assert len(sequence.rows) >= self.rows_for(sequence.num_computed_tokens)
