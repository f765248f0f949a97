"""Prefill batches: how they are formed, and those that are making their way through the layers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from math import isinf

from pdmux_actor.scheduling.block_sharing import BlockSharing
from pdmux_actor.scheduling.launch import Chunk
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import SequenceStatus, TokenSequence
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.latency import ChunkShape


@dataclass(slots=True, eq=False)
class PrefillBatch:
    batch_id: int
    model: str
    chunks: tuple[Chunk, ...]
    num_layers: int
    next_layer: int = 0
    in_flight: bool = False
    on_last_slice: bool = False  # the slice in flight ends the batch
    is_put_back: bool = False  # fewer requests are in time if it goes on before those that wait (prompt_order.py)
    was_preempted: bool = False
    is_kept: bool = False  # it is not preempted: it has been late for long (prompt_order.py)
    shapes: tuple[ChunkShape, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.shapes = tuple([chunk.shape for chunk in self.chunks])

    @property
    def layers_left(self) -> int:
        return self.num_layers - self.next_layer

    @property
    def first_token_due_s(self) -> float:
        """Returns the due time of the sequence that is due first."""
        return min([chunk.sequence.first_token_due_s for chunk in self.chunks])

    @property
    def gives_way(self) -> bool:
        return self.chunks[0].sequence.gives_way

    def is_late(self, now_s: float) -> bool:
        """Returns whether its first token is late; one that was told, before its KV was taken, is so from then on."""
        due_s = self.first_token_due_s
        return now_s > due_s or isinf(due_s)

    def holds(self, sequence: TokenSequence) -> bool:
        return any(chunk.sequence is sequence for chunk in self.chunks)


class PrefillBatches:
    """A unit has one batch under way, and at most one that it has preempted."""

    def __init__(self) -> None:
        self._batches: list[PrefillBatch] = []  # the one under way last
        self._last_id = 0

    def __iter__(self) -> Iterator[PrefillBatch]:
        return iter(self._batches)

    def __contains__(self, batch: PrefillBatch) -> bool:
        return batch in self._batches

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def current(self) -> PrefillBatch | None:
        return self._batches[-1] if self._batches else None

    @property
    def suspended(self) -> PrefillBatch | None:
        return self._batches[0] if len(self._batches) > 1 else None

    def holding(self, sequence: TokenSequence) -> PrefillBatch | None:
        return next((batch for batch in self._batches if batch.holds(sequence)), None)

    def start(self, queue: ModelQueue, chunks: Iterable[Chunk]) -> PrefillBatch:
        """One more, of the model's sequences: the batch under way is suspended."""
        assert len(self._batches) < 2, "a batch that preempts is not preempted"
        for preempted in self._batches:
            preempted.was_preempted = True
        self._last_id += 1
        batch = PrefillBatch(self._last_id, queue.model, tuple(chunks), queue.info.spec.num_layers)
        queue.num_prefilling += len(batch.chunks)
        self._batches.append(batch)
        return batch

    def end(self, queue: ModelQueue, batch: PrefillBatch) -> None:
        self._batches.remove(batch)
        queue.num_prefilling -= len(batch.chunks)

    def sequences(self, model: str) -> Sequence[TokenSequence]:
        return [chunk.sequence for batch in self._batches if batch.model == model for chunk in batch.chunks]


def take_chunks(
    queue: ModelQueue,
    settings: SchedulerSettings,
    budget_tokens: int,
    *,
    whole_prompts: bool,
    max_prompts: int | None = None,
) -> list[Chunk]:
    """Takes sequences out of `partial` and `waiting`, with rows for all their known tokens, as chunks.

    With `whole_prompts` every chunk completes its prompt and only the first may exceed the budget: it ends where the
    settings say that a chunk must. Without it the last chunk is cut at the budget.
    """
    chunks: list[Chunk] = []
    longest = settings.longest_chunk_tokens
    while budget_tokens > 0 and (max_prompts is None or len(chunks) < max_prompts):
        sequence = next_for_prefill(queue, settings, num_taken=len(chunks))
        if sequence is None or (chunks and sequence.gives_way and not chunks[0].sequence.gives_way):
            break
        length = queue.chunk_shape(sequence).new_tokens
        if length > budget_tokens:
            if whole_prompts and chunks:
                break
            length = min(length, longest or length) if whole_prompts else budget_tokens
        _take(queue, sequence)
        chunks.append(Chunk(sequence, sequence.num_computed_tokens, length))
        budget_tokens -= length
    return chunks


def next_for_prefill(queue: ModelQueue, settings: SchedulerSettings, *, num_taken: int = 0) -> TokenSequence | None:
    """The sequence whose prefill is next, if the model may take KV for it now. One that is begun goes on, unless it
    gives way to one that waits.
    """
    if queue.removing:
        return None
    begun = queue.partial[0] if queue.partial and not queue.partial[0].in_flight else None
    if begun is not None and not (begun.gives_way and queue.waiting and not queue.waiting[0].gives_way):
        return begun
    if queue.waiting and queue.admits(
        queue.waiting[0],
        max_resident=queue.places(settings.max_running_sequences),
        watermark=settings.kv_watermark,
        num_taken=num_taken,
    ):
        return queue.waiting[0]
    return begun


def preview_chunks(
    queue: ModelQueue, settings: SchedulerSettings, budget_tokens: int, *, whole_prompts: bool
) -> list[ChunkShape]:
    """Shapes of what `take_chunks` would take with the same arguments, without taking it.

    It does not foresee that KV runs out behind the first sequence, nor that a very long prompt is cut (its first token
    comes with its end): a prediction may then be of a longer launch.
    """
    shapes: list[ChunkShape] = []
    head = next_for_prefill(queue, settings)
    if head is None:
        return shapes
    free_places = max(0, queue.places(settings.max_running_sequences) - queue.num_resident)
    begun = () if head.status is SequenceStatus.WAITING else queue.partial
    for sequence in chain(begun, islice(queue.waiting, free_places)):
        if budget_tokens <= 0 or (sequence.gives_way and not head.gives_way):
            break
        whole = queue.chunk_shape(sequence)
        if whole_prompts and shapes and whole.new_tokens > budget_tokens:
            break
        taken = whole if whole_prompts else ChunkShape(min(whole.new_tokens, budget_tokens), whole.context_tokens)
        shapes.append(taken)
        budget_tokens -= whole.new_tokens
    return shapes


def _take(queue: ModelQueue, sequence: TokenSequence) -> None:
    if sequence.status is not SequenceStatus.WAITING:
        queue.partial.popleft()
        return
    queue.waiting.popleft()
    cached = queue.cached_prefix(sequence)
    queue.pool.reuse_rows(queue.model, cached)
    rows = queue.pool.allocate_rows(queue.model, queue.rows_for(len(sequence.token_ids)) - len(cached))
    assert rows is not None, "admitted beyond the pool"
    sequence.rows = cached + rows
    sequence.num_reused_rows = len(cached)
    sequence.num_computed_tokens = len(cached) * queue.info.geometry.tokens_per_row
    for counts in queue.counted(sequence):
        counts.prefix_hit_tokens += sequence.num_computed_tokens
    if sequence.first_token_s is None:
        sequence.untold_cached_tokens = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
    sequence.status = SequenceStatus.PREFILLING


def grow_running(queue: ModelQueue, steps: int, sharing: BlockSharing) -> tuple[TokenSequence, ...]:
    """Running sequences, oldest first, with rows for `steps` more tokens.

    Where rows run out, what others borrowed is taken back; what of it is in flight is waited for. Beyond the model's
    own rights the youngest is preempted, of those that give way first: the oldest always gets on, nothing deadlocks.
    """
    if grow_together(queue, steps):
        return tuple(queue.running)
    ready: list[TokenSequence] = []
    stalled: list[TokenSequence] = []
    running, tokens_per_row = queue.running, queue.info.geometry.tokens_per_row
    while len(ready) + len(stalled) < len(running):
        sequence = running[len(ready) + len(stalled)]
        missing = -(-(len(sequence.token_ids) - 1 + steps) // tokens_per_row) - len(sequence.rows)
        if missing <= 0:
            ready.append(sequence)
            continue
        rows = queue.pool.allocate_rows(queue.model, missing)
        if rows is None:
            sharing.reclaim(queue, missing)
            rows = queue.pool.allocate_rows(queue.model, missing)
        if rows is not None:
            sequence.rows += rows
            ready.append(sequence)
        elif queue.pool.missing_blocks(queue.model, missing) > 0:
            stalled.append(sequence)
        else:
            victim = queue.background_victim or running[-1]
            for passed in (ready, stalled):
                if victim in passed:
                    passed.remove(victim)
            queue.preempt(victim)
    return tuple(ready)


def grow_together(queue: ModelQueue, steps: int) -> bool:
    """One allocation for all running sequences, of which nothing is read but how long the queue says they are. False,
    and nothing is taken, beyond the quota or where rows run out: what may be borrowed shrinks with every row that is.
    """
    tokens_per_row, ahead = queue.info.geometry.tokens_per_row, steps - 1
    # Rows cover all tokens but the last: only who is within reach of a row's end can need another.
    short = [
        (sequence, context)
        for sequence, context in zip(queue.running, queue.context_tokens, strict=True)
        if (1 - context) % tokens_per_row <= ahead and context + ahead > len(sequence.rows) * tokens_per_row
    ]
    if not short:
        return True
    missing = [(sequence, -(-(context + ahead) // tokens_per_row) - len(sequence.rows)) for sequence, context in short]
    pool, num_rows = queue.pool, sum([count for _, count in missing])
    needed_blocks = num_rows * queue.info.geometry.blocks_per_row
    if pool.used_blocks(queue.model) + needed_blocks > pool.quota_blocks(queue.model):
        return False
    rows = pool.allocate_rows(queue.model, num_rows)
    if rows is None:
        return False
    for sequence, count in missing:
        sequence.rows += rows[:count]
        del rows[:count]
    return True
