"""A fused step's layers at one number of tokens, around their attention, so that each piece can be captured.

How far a step's sequences reach is another for each, so that attention is launched each time. What stands before and
after it depends on nothing but the number of tokens: two replays instead of some ten launches a layer, as vLLM's
piecewise graphs have it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pdmux_actor.executor.cuda.graph_key import Step
from pdmux_actor.executor.cuda.prefill_bucket import LayersStart, are_alike
from pdmux_actor.models.decoder import Attention, Decoder
from pdmux_actor.models.workspace import Workspace
from pdmux_actor.scheduling.launch import MixedStep


def may_run_in_pieces(launch: MixedStep, own_kv_beyond_tokens: int | None) -> bool:
    """Returns whether its layers but for attention are the same work for all steps of so many tokens: sequences that
    `are_alike`.
    """
    return are_alike((*(chunk.sequence for chunk in launch.chunks), *launch.sequences), own_kv_beyond_tokens)


@dataclass(frozen=True, slots=True)
class PieceBuffers:
    """Serves all buckets of a model, the largest whole: one step at a time has it, until its launch is over.

    token_ids, positions: int32 [tokens]; hidden: [tokens, hidden_size]; heads: [tokens, heads + 2 * kv_heads,
    head_dim]; attended: [tokens, heads * head_dim].
    """

    token_ids: Tensor
    positions: Tensor
    hidden: Tensor
    heads: Tensor
    attended: Tensor

    @classmethod
    def of(cls, decoder: Decoder, num_tokens: int, dtype: torch.dtype, device: torch.device) -> "PieceBuffers":
        spec = decoder.spec

        def zeros(*size: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(num_tokens, *size, dtype=dtype, device=device)

        return cls(
            token_ids=zeros(dtype=torch.int32),
            positions=zeros(dtype=torch.int32),
            hidden=zeros(spec.hidden_size),
            heads=zeros(spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim),
            attended=zeros(spec.num_heads * spec.head_dim),
        )


class PieceBucket:
    """`size` tokens at most; the rest are padding, which attention does not see."""

    def __init__(self, decoder: Decoder, size: int, buffers: PieceBuffers) -> None:
        self._decoder = decoder
        self.size = size
        self.buffers = buffers
        self._heads, self._attended = buffers.heads[:size], buffers.attended[:size]
        self._start = LayersStart(
            decoder=decoder,
            token_ids=buffers.token_ids[:size],
            positions=buffers.positions[:size],
            hidden=buffers.hidden[:size],
        )

    def run(
        self, steps: Sequence[Step], tensors: Mapping[str, Tensor], attention: Attention, workspace: Workspace
    ) -> Tensor:
        """Runs all layers of a batch (see DeviceBatch) by `steps`, which are those of `steps` or what was captured of
        them. Returns its hidden states, until the next run.
        """
        num_tokens, spec, start = len(tensors["token_ids"]), self._decoder.spec, self._start
        start.token_ids[:num_tokens].copy_(tensors["token_ids"])
        start.positions[:num_tokens].copy_(tensors["positions"])
        embed, rotate, *pieces = steps
        embed()
        rotate()
        query, key, value = self._heads[:num_tokens].split([spec.num_heads, *[spec.num_kv_heads] * 2], dim=1)
        attended = self._attended[:num_tokens]
        for index, (before, after) in enumerate(zip(pieces[::2], pieces[1::2], strict=True)):
            with workspace.passing():
                before()
                attended.copy_(attention(index, query, key, value, self._decoder.attention_traits(index)))
            after()
        return start.hidden[:num_tokens]

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
        return (*self._start.steps(rotary), *pieces)

    def _before(self, index: int, rotary: list[Any]) -> None:
        torch.cat(self._decoder.attention_inputs(index, self._start.hidden, rotary[0]), dim=1, out=self._heads)

    def _after(self, index: int) -> None:
        self._start.keep(self._decoder.after_attention(index, self._attended, self._start.hidden))
