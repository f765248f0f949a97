"""Embeddings of prompts: the final norm's output at each prompt's last token, from a prefill's hidden states."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pdmux_actor.models.decoder import LayeredDecoder
from pdmux_actor.scheduling.launch import Chunk


@dataclass(frozen=True, slots=True)
class ComputedEmbeddings:
    """Holds those of a launch, [prompts, hidden_size], float32, which are on the host once the launch is over."""

    places: Sequence[int]
    states: Tensor

    @classmethod
    def of(
        cls,
        chunks: Sequence[Chunk],
        decoder: LayeredDecoder,
        hidden: Tensor,
        to_host: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    ) -> "ComputedEmbeddings | None":
        """`hidden` [tokens, hidden_size] are those of the launch, after the last layer; chunks are at the beginning of
        its tokens. Enqueues, where a device is to compute it, and does not wait. None: nobody asks.
        """
        places: list[int] = []
        states: list[Tensor] = []
        first = 0
        for place, chunk in enumerate(chunks):
            if (token := chunk.embedded_token) is not None:
                places.append(place)
                states.append(hidden[first + token : first + token + 1])
            first += chunk.length
        return cls(places, to_host(decoder.final_states(torch.cat(states)))) if places else None

    def read(self) -> dict[int, bytes]:
        """Returns them by the place of a chunk, float32, little-endian."""
        rows = self.states.numpy().astype("<f4", copy=False)
        return {place: row.tobytes() for place, row in zip(self.places, rows, strict=True)}
