"""A fused step's layers at one number of tokens, around their attention, so that each piece can be captured.

How far a step's sequences reach is another for each, so that attention is launched each time. What stands before and
after it depends on nothing but the number of tokens: two replays instead of some ten launches a layer, as vLLM's
piecewise graphs have it. The buffers serve one step at a time, which is over with its lane's launch.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pdmux_actor.executor.cuda.graph_key import Step
from pdmux_actor.models.decoder import Attention, Decoder
from pdmux_actor.scheduling.launch import MixedStep

_STEPS_BEFORE_LAYERS = 2


def has_pieces(launch: MixedStep, decoder: object, own_kv_beyond_tokens: int | None) -> bool:
    """Returns whether its layers but for attention are the same work for all steps of so many tokens: no adapter is
    asked for, no prompt has rotary frequencies of its own (ModelInfo.own_kv_beyond_tokens).
    """
    limit = float("inf") if own_kv_beyond_tokens is None else own_kv_beyond_tokens
    sequences = (*(chunk.sequence for chunk in launch.chunks), *launch.sequences)
    plain = all(s.adapter is None and s.num_prompt_tokens <= limit for s in sequences)
    return plain and isinstance(decoder, Decoder)


class PieceBucket:
    """`size` tokens at most; the rest are padding, which attention does not see."""

    def __init__(self, decoder: Decoder, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._decoder = decoder
        self.size = size
        spec = decoder.spec
        self._token_ids, self._positions = (torch.zeros(size, dtype=torch.int32, device=device) for _ in range(2))
        self._hidden = torch.zeros(size, spec.hidden_size, dtype=dtype, device=device)
        heads = spec.num_heads + 2 * spec.num_kv_heads
        self._heads = torch.zeros(size, heads, spec.head_dim, dtype=dtype, device=device)
        self._attended = torch.zeros(size, spec.num_heads * spec.head_dim, dtype=dtype, device=device)

    def run(self, steps: Sequence[Step], tensors: Mapping[str, Tensor], attention: Attention) -> Tensor:
        """Runs all layers of a batch (see DeviceBatch) by `steps`, which are those of `steps` or what was captured of
        them. Returns its hidden states, until the next run.
        """
        num_tokens, spec = len(tensors["token_ids"]), self._decoder.spec
        self._token_ids[:num_tokens].copy_(tensors["token_ids"])
        self._positions[:num_tokens].copy_(tensors["positions"])
        embed, rotate = steps[:_STEPS_BEFORE_LAYERS]
        embed()
        rotate()
        query, key, value = self._heads[:num_tokens].split([spec.num_heads, *[spec.num_kv_heads] * 2], dim=1)
        attended = self._attended[:num_tokens]
        for index in range(spec.num_layers):
            before, after = steps[_STEPS_BEFORE_LAYERS + 2 * index : _STEPS_BEFORE_LAYERS + 2 * index + 2]
            before()
            attended.copy_(attention(index, query, key, value, self._decoder.attention_traits(index)))
            after()
        return self._hidden[:num_tokens]

    def steps(self) -> Sequence[Step]:
        """Returns what comes before the layers, and what comes before and after the attention of each, which reads the
        rotary of these very steps. They change nothing but this bucket's buffers.
        """
        rotary = list[Any]()
        pieces = [
            piece
            for index in range(self._decoder.spec.num_layers)
            for piece in (partial(self._before, index, rotary), partial(self._after, index))
        ]
        return (self._embed, partial(self._rotate, rotary), *pieces)

    def _embed(self) -> None:
        self._hidden.copy_(self._decoder.start(self._token_ids, self._positions)[0])

    def _rotate(self, rotary: list[Any]) -> None:
        rotary[:] = [self._decoder.start(self._token_ids, self._positions)[1]]

    def _before(self, index: int, rotary: list[Any]) -> None:
        torch.cat(self._decoder.attention_inputs(index, self._hidden, rotary[0]), dim=1, out=self._heads)

    def _after(self, index: int) -> None:
        hidden = self._decoder.after_attention(index, self._attended, self._hidden)
        if hidden.data_ptr() != self._hidden.data_ptr():
            self._hidden.copy_(hidden)
