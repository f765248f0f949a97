"""The prefill batches that are making their way through the layers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pdmux_actor.scheduling.launch import Chunk
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import TokenSequence
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

    def holds(self, sequence: TokenSequence) -> bool:
        return any(chunk.sequence is sequence for chunk in self.chunks)


class PrefillBatches:
    """A unit has one batch under way, and at most one that it has preempted."""

    def __init__(self) -> None:
        self._batches: list[PrefillBatch] = []  # the one under way last
        self._last_id = 0

    def __iter__(self) -> Iterator[PrefillBatch]:
        return iter(self._batches)

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
