"""The prefill batch that is making its way through the layers."""

from dataclasses import dataclass

from pdmux_actor.scheduling.launch import Chunk
from profiler.latency import ChunkShape


@dataclass(slots=True, eq=False)
class PrefillBatch:
    batch_id: int
    model: str
    chunks: tuple[Chunk, ...]
    num_layers: int
    next_layer: int = 0
    in_flight: bool = False

    @property
    def layers_left(self) -> int:
        return self.num_layers - self.next_layer

    @property
    def shapes(self) -> list[ChunkShape]:
        return [chunk.shape for chunk in self.chunks]
