"""Computes what comes before captured layers, over buffers that never move: hidden states and rotary of a batch."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from pdmux_actor.executor.cuda.graph_key import Step
from pdmux_actor.models.decoder import LayeredDecoder
from pdmux_actor.scheduling.sequence import TokenSequence

STEPS_BEFORE_LAYERS = 2


def are_alike(sequences: Iterable[TokenSequence], own_kv_beyond_tokens: int | None) -> bool:
    """Returns whether what is captured serves all of them: none asks for an adapter, none has rotary frequencies of its
    own (ModelInfo.own_kv_beyond_tokens).
    """
    limit = float("inf") if own_kv_beyond_tokens is None else own_kv_beyond_tokens
    return all(s.adapter is None and s.num_prompt_tokens <= limit for s in sequences)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersStart:
    """token_ids, positions: int32 [tokens]; hidden: [tokens, hidden_size]."""

    decoder: LayeredDecoder
    token_ids: Tensor
    positions: Tensor
    hidden: Tensor

    def steps(self, rotary: list[Any]) -> tuple[Step, Step]:
        """Returns STEPS_BEFORE_LAYERS steps: one fills `hidden`, the other leaves in `rotary` what layers read."""
        return self._embed, partial(self._rotate, rotary)

    def keep(self, hidden: Tensor) -> None:
        """Keeps what came of a layer that did not change `hidden` in place."""
        if hidden.data_ptr() != self.hidden.data_ptr():
            self.hidden[: len(hidden)].copy_(hidden)

    def _embed(self) -> None:
        self.hidden.copy_(self.decoder.start(self.token_ids, self.positions)[0])

    def _rotate(self, rotary: list[Any]) -> None:
        rotary[:] = [self.decoder.start(self.token_ids, self.positions)[1]]
