"""A prompt's layers at one number of tokens, over buffers that never move, so that each can be captured.

A slice of any layers is a row of replays. What a launch costs is then the device's time, and not the host's for the ten
kernels of each layer. One prefill batch at a time has the buffers, between its slices, too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pdmux_actor.executor.cuda.device_kv import DeviceKv
from pdmux_actor.executor.cuda.graph_key import Step
from pdmux_actor.executor.cuda.prompt_attention import packed_attention
from pdmux_actor.models.attention import PLAIN, AttentionTraits
from pdmux_actor.models.decoder import LayeredDecoder
from pdmux_actor.scheduling.launch import Chunk
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


MOST_CHUNKS = 16
_NO_ROW = -1


def may_be_captured(chunks: Sequence[Chunk], own_kv_beyond_tokens: int | None) -> bool:
    """Returns whether its layers are the same work for all batches of so many tokens: sequences of which nothing was
    cached before, and that `are_alike`.
    """
    begins = len(chunks) <= MOST_CHUNKS and all(chunk.start == 0 for chunk in chunks)
    return begins and are_alike([chunk.sequence for chunk in chunks], own_kv_beyond_tokens)


class PrefillBucket:
    """`size` tokens at most. The rest are padding, a chunk of its own that writes no KV."""

    def __init__(self, decoder: LayeredDecoder, kv: DeviceKv, size: int) -> None:
        self._decoder = decoder
        self._kv = kv
        self.size = size
        device = kv.pool.device
        self._token_ids, self._positions = (torch.zeros(size, dtype=torch.int32, device=device) for _ in range(2))
        self._rows = torch.full((size,), _NO_ROW, dtype=torch.int32, device=device)
        self._ends = torch.full((MOST_CHUNKS + 2,), size, dtype=torch.int32, device=device)
        self._hidden = torch.zeros(size, decoder.spec.hidden_size, dtype=kv.pool.dtype, device=device)
        self._start = LayersStart(
            decoder=decoder, token_ids=self._token_ids, positions=self._positions, hidden=self._hidden
        )
        self._batch_id: int | None = None

    @property
    def is_taken(self) -> bool:
        return self._batch_id is not None

    def begin(self, batch_id: int, tensors: Mapping[str, Tensor]) -> Tensor:
        """Takes the inputs of a batch (see DeviceBatch). Returns its hidden states, which steps change in place."""
        assert not self.is_taken, "another batch is between two slices"
        self._batch_id = batch_id
        num_tokens, ends = len(tensors["token_ids"]), tensors["query_ends"]
        self._token_ids[:num_tokens].copy_(tensors["token_ids"])
        self._positions[:num_tokens].copy_(tensors["positions"])
        self._rows.fill_(_NO_ROW)[:num_tokens].copy_(tensors["rows"])
        self._ends.fill_(self.size)[: len(ends)].copy_(ends)
        return self._hidden[:num_tokens]

    def run(self, steps: Sequence[Step], first_layer: int, last_layer: int) -> None:
        """Runs layers of the batch by `steps`, which are those of `steps` or what was captured of them."""
        embed, rotate = steps[:STEPS_BEFORE_LAYERS]
        if first_layer == 0:
            embed()
        rotate()
        for layer in steps[STEPS_BEFORE_LAYERS + first_layer : STEPS_BEFORE_LAYERS + last_layer]:
            layer()

    def keep(self, hidden: Tensor) -> None:
        """Keeps what came of a slice that ran launch by launch."""
        self._start.keep(hidden)

    def let_go(self, batch_id: int) -> None:
        if self._batch_id == batch_id:
            self._batch_id = None

    def steps(self) -> Sequence[Step]:
        """Returns what comes before the layers, and each layer, which reads the rotary of these very steps: while they
        are captured one by one, others of this bucket may be, too.
        """
        rotary = list[Any]()
        layers = [partial(self._layer, index, rotary) for index in range(self._decoder.spec.num_layers)]
        return (*self._start.steps(rotary), *layers)

    @contextmanager
    def spared(self) -> Iterator[None]:
        """Encloses runs of `steps` for their own sake: they write no KV, and what a batch has here is as before."""
        rows, hidden = self._rows.clone(), self._hidden.clone()
        self._rows.fill_(_NO_ROW)
        try:
            yield
        finally:
            self._rows.copy_(rows)
            self._hidden.copy_(hidden)

    def _layer(self, index: int, rotary: list[Any]) -> None:
        self.keep(self._decoder.forward_layers(self._hidden, rotary[0], self._attend, index, index + 1))

    def _attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, traits: AttentionTraits = PLAIN) -> Tensor:
        self._kv.store(layer, self._rows, self._positions, key, value)
        return packed_attention(traits.scaled(query), key, value, self._ends).flatten(1)
