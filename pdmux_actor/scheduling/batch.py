"""The prefill batch that is making its way through the layers."""

from dataclasses import dataclass, field

from pdmux_actor.scheduling.launch import Chunk
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
        """Of the sequence that is due first."""
        return min([chunk.sequence.first_token_due_s for chunk in self.chunks])

    def holds(self, sequence: TokenSequence) -> bool:
        return any(chunk.sequence is sequence for chunk in self.chunks)
