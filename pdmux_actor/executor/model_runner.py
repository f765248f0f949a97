"""Runs launches of one lane, one after the other, on whatever thread calls it."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdmux_actor.executor.blocks_in_place import BlocksInPlace
from pdmux_actor.executor.compiled_layers import CompiledLayers
from pdmux_actor.executor.kv_storage import KvView, Scratch
from pdmux_actor.executor.packed_batch import DecodeInputs, PackedBatch, pack, token_runs
from pdmux_actor.executor.paged_attention import PagedAttention
from pdmux_actor.executor.prompt_outputs import ComputedEmbeddings, PromptRows
from pdmux_actor.executor.sampler import Sampler
from pdmux_actor.messages import PromptLogprob, SampledToken
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.models.decoder import LayeredDecoder
from pdmux_actor.models.lora import AdapterBatch
from pdmux_actor.scheduling.launch import Chunk, ComputeLaunch, DecodeStep, MixedStep, PrefillSlice, sampling_sequences
from pdmux_actor.scheduling.sequence import TokenSequence

# What decode reads at once: small enough to stay in the last-level cache between the gather and the attention.
_MAX_READ_BYTES = 8 * 1024 * 1024
_ANY_NUMBER = sys.maxsize  # of rows, where nothing is gathered

LOGITS_NOT_FINITE = "the model's logits were not finite (NaN or infinity); serve it with dtype float32 or bfloat16"

Tokens = tuple[tuple[SampledToken, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedModel:
    info: ModelInfo
    decoder: LayeredDecoder
    kv: KvView
    row_table: npt.NDArray[np.int64]
    blocks_in_place: BlocksInPlace | None = None  # what decodes without gathering
    compiled_layers: CompiledLayers | None = None


@dataclass(slots=True)
class UnfinishedPrefill:
    """A prefill batch between two slices."""

    model: str
    batch: PackedBatch
    rotary: Any
    hidden: Tensor
    next_layer: int
    adapters: AdapterBatch | None


@dataclass(frozen=True, slots=True)
class Produced:
    """`tokens[i]` of the launch's i-th sampling sequence; `errors` by i, of sequences that have no tokens;
    `prompt_logprobs` and `embeddings` by the place of a chunk.
    """

    tokens: Tokens = ()
    errors: Mapping[int, str] = field(default_factory=dict)
    prompt_logprobs: Mapping[int, tuple[PromptLogprob, ...]] = field(default_factory=dict)
    embeddings: Mapping[int, bytes] = field(default_factory=dict)


class ModelRunner:
    """`models` is shared with the executor, which adds and removes entries while no launch of them is in flight."""

    def __init__(self, models: Mapping[str, AttachedModel]) -> None:
        self._models = models
        self._prefills: dict[int, UnfinishedPrefill] = {}
        self._scratch = Scratch()

    def run(self, launch: ComputeLaunch) -> Produced:
        """New tokens of the launch's sampling sequences, in the order of `sampling_sequences`."""
        match launch:
            case PrefillSlice():
                return self._prefill(launch)
            case DecodeStep():
                return self._decode(launch)
            case MixedStep():
                return self._mixed(launch)

    def drop_prefill(self, batch_id: int) -> None:
        self._prefills.pop(batch_id, None)

    def forget_model(self, model: str) -> None:
        for batch_id, state in list(self._prefills.items()):
            if state.model == model:
                self.drop_prefill(batch_id)

    def _prefill(self, launch: PrefillSlice) -> Produced:
        model = self._models[launch.model]
        if launch.first_layer == 0:
            batch = _pack(model, launch.chunks, DecodeInputs.of(()), torch.empty(0, dtype=torch.int64))
            hidden, rotary = model.decoder.start(batch.token_ids, batch.positions, batch.prompts)
            state = UnfinishedPrefill(launch.model, batch, rotary, hidden, 0, _adapters(model, launch.chunks, ()))
        else:
            state = self._prefills.pop(launch.batch_id)
        assert state.next_layer == launch.first_layer, "slices of a prefill batch must follow one another"
        state.hidden = self._forward(
            model, state.batch, state.hidden, state.rotary, launch.first_layer, launch.last_layer, state.adapters
        )
        state.next_layer = launch.last_layer
        if launch.last_layer < model.info.spec.num_layers:
            self._prefills[launch.batch_id] = state
            return Produced()
        sampler = Sampler(sampling_sequences(launch, launch.last_layer), model.info.eos_token_ids)
        tokens, broken = self._sample(model, state.batch, state.hidden, sampler)
        produced = _produced(tokens, broken, range(len(tokens)))
        return _with_prompts(produced, model.decoder, launch.chunks, state.hidden)

    def _decode(self, launch: DecodeStep) -> Produced:
        model = self._models[launch.model]
        inputs = DecodeInputs.of(launch.sequences)
        ordered = [launch.sequences[index] for index in inputs.order]
        sampler = Sampler(ordered, model.info.eos_token_ids)
        token_ids = inputs.last_tokens(launch.sequences)
        adapters = _adapters(model, (), ordered)
        sampled = []
        for step in range(launch.steps):
            batch = _pack(model, (), inputs, token_ids, step)
            logits = model.decoder.logits(self._forward_all(model, batch, adapters))
            sampled.append(sampler.sample(logits, step))
            token_ids = sampled[-1].token_ids
        tokens = list(zip(*(sampler.tokens(one_step) for one_step in sampled), strict=True))
        broken = frozenset[int]().union(*(one_step.broken_rows for one_step in sampled))
        return _produced(tokens, broken, inputs.order)

    def _mixed(self, launch: MixedStep) -> Produced:
        model = self._models[launch.model]
        inputs = DecodeInputs.of(launch.sequences)
        token_ids = inputs.last_tokens(launch.sequences)
        batch = _pack(model, launch.chunks, inputs, token_ids)
        decoding = [launch.sequences[index] for index in inputs.order]
        adapters = _adapters(model, launch.chunks, decoding)
        hidden = self._forward_all(model, batch, adapters)
        sampling = [c.sequence for c in launch.chunks if c.samples]
        sampler = Sampler([*sampling, *decoding], model.info.eos_token_ids)
        tokens, broken = self._sample(model, batch, hidden, sampler)
        produced = _produced(tokens, broken, [*range(len(sampling)), *(len(sampling) + inputs.order)])
        return _with_prompts(produced, model.decoder, launch.chunks, hidden)

    def _forward_all(self, model: AttachedModel, batch: PackedBatch, adapters: AdapterBatch | None) -> Tensor:
        hidden, rotary = model.decoder.start(batch.token_ids, batch.positions, batch.prompts)
        return self._forward(model, batch, hidden, rotary, 0, model.info.spec.num_layers, adapters)

    def _forward(
        self,
        model: AttachedModel,
        batch: PackedBatch,
        hidden: Tensor,
        rotary: Any,  # noqa: ANN401 - each decoder's own
        first_layer: int,
        last_layer: int,
        adapters: AdapterBatch | None,
    ) -> Tensor:
        if model.compiled_layers is not None and adapters is None and not batch.chunks:
            return model.compiled_layers.forward(batch, hidden, rotary, first_layer, last_layer)
        attention = PagedAttention(
            batch, model.kv, model.row_table, self._scratch, first_layer, last_layer, model.blocks_in_place
        )
        return model.decoder.forward_layers(hidden, rotary, attention, first_layer, last_layer, adapters)

    def _sample(
        self, model: AttachedModel, batch: PackedBatch, hidden: Tensor, sampler: Sampler
    ) -> tuple[list[tuple[SampledToken, ...]], frozenset[int]]:
        """One token per row of the sampler, and the rows that have none because their logits were not finite."""
        if not len(batch.sample_tokens):
            return [], frozenset()
        sampled = sampler.sample(model.decoder.logits(hidden.index_select(0, batch.sample_tokens)))
        return [(token,) for token in sampler.tokens(sampled)], sampled.broken_rows


MakeRunner = Callable[[int, Mapping[str, AttachedModel]], ModelRunner]
"""Makes the runner of a lane, by its number, over an executor's models."""


def lone_runner(number: int, models: Mapping[str, AttachedModel]) -> ModelRunner:
    """A runner that no other rank works with, the same for every lane."""
    return ModelRunner(models)


def _pack(
    model: AttachedModel, chunks: Sequence[Chunk], decodes: DecodeInputs, decode_token_ids: Tensor, step: int = 0
) -> PackedBatch:
    return pack(
        chunks,
        decodes,
        decode_token_ids,
        step=step,
        tokens_per_row=model.kv.tokens_per_row,
        max_group_rows=_MAX_READ_BYTES // model.kv.row_bytes_per_layer
        if model.blocks_in_place is None
        else _ANY_NUMBER,
    )


def _adapters(model: AttachedModel, chunks: Sequence[Chunk], decodes: Sequence[TokenSequence]) -> AdapterBatch | None:
    runs = token_runs(chunks, decodes)
    slots = model.decoder.adapters
    return None if slots is None or not runs else slots.batch(runs)


def _with_prompts(produced: Produced, decoder: LayeredDecoder, chunks: Sequence[Chunk], hidden: Tensor) -> Produced:
    """Adds what the prompts themselves give."""
    logprobs = {rows.place: rows.computed(decoder, hidden).read() for rows in PromptRows.of(chunks)}
    embeddings = ComputedEmbeddings.of(chunks, decoder, hidden)
    if not logprobs and embeddings is None:
        return produced
    return replace(produced, prompt_logprobs=logprobs, embeddings={} if embeddings is None else embeddings.read())


def _produced(
    tokens: Sequence[tuple[SampledToken, ...]],
    broken: frozenset[int],
    order: Iterable[int],
) -> Produced:
    """`order[row]` is the place in the launch of a row's sequence."""
    placed = dict(zip(order, enumerate(tokens), strict=True))
    ordered = [placed[place] for place in range(len(placed))]
    return Produced(
        tuple(() if row in broken else of_row for row, of_row in ordered),
        {place: LOGITS_NOT_FINITE for place, (row, _) in enumerate(ordered) if row in broken},
    )
