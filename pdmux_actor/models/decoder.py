"""One decoder for all native families (profiler/families), over a packed batch of tokens: what sets them apart is
their DecoderTraits.

It knows nothing of sequences, caches or sampling: attention is a callable that the executor provides.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from pdmux_actor.models.attention import PLAIN, AttentionTraits
from pdmux_actor.models.compiled.compiled_linear import CompiledLinear
from pdmux_actor.models.config import DecoderConfig
from pdmux_actor.models.linear import Classifier, Projection
from pdmux_actor.models.logit_precision import sharpen_top_logits
from pdmux_actor.models.lora import AdapterBatch, AdapterSlots
from pdmux_actor.models.mixture import FeedForward, GatedMlp
from pdmux_actor.models.module_weights import ModuleWeights
from pdmux_actor.models.operators import DecoderOperators, HeadNorms, TorchOperators
from pdmux_actor.models.rope import (
    PromptPiece,
    exponents_and_factors,
    inverse_frequencies,
    rotary_table,
    theta_of_prompt,
)
from pdmux_actor.models.transformers_config import TransformersConfig
from pdmux_actor.models.uploads import Upload, copy_in_place, moved
from profiler.adapter_sites import Site
from profiler.specs import ModelSpec

# Look-ahead decoding may compute a few tokens past the longest sequence before its end is noticed.
_LOOK_AHEAD_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """`qkv` stacks the Q, K and V heads. `sinks` as AttentionTraits has them."""

    input_norm: Tensor
    qkv: Projection
    head_norms: HeadNorms | None
    output: Projection
    post_attention_norm: Tensor
    feed_forward: FeedForward
    sinks: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    lm_head: Classifier


AnyWeights = DecoderWeights | ModuleWeights
AnyConfig = DecoderConfig | TransformersConfig


class Attention(Protocol):
    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, traits: AttentionTraits = PLAIN
    ) -> Tensor:
        """Keeps the new keys and values and attends to everything each token may see.

        query: [tokens, heads, head_dim]; key, value: [tokens, kv_heads, head_dim]; returns [tokens, heads * head_dim].
        """
        ...


class LayeredDecoder(Protocol):
    """Is a decoder that runs a slice of its layers at a time. `rotary` stands for whatever `start` makes for them."""

    spec: ModelSpec

    @property
    def config(self) -> AnyConfig: ...

    @property
    def weights(self) -> AnyWeights: ...

    @property
    def adapters(self) -> AdapterSlots | None: ...

    def start(self, token_ids: Tensor, positions: Tensor, prompts: Iterable[PromptPiece] = ()) -> tuple[Tensor, Any]:
        """[tokens] each -> hidden states [tokens, hidden_size], and what `forward_layers` needs beside them. `prompts`:
        what of the batch is of prompts.
        """
        ...

    def forward_layers(
        self,
        hidden: Tensor,
        rotary: Any,  # noqa: ANN401 - each decoder's own
        attention: Attention,
        first_layer: int,
        last_layer: int,
        adapters: AdapterBatch | None = None,
    ) -> Tensor: ...

    def final_states(self, hidden: Tensor) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


class Decoder:
    """Implements LayeredDecoder."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        max_model_len: int,
        operators: DecoderOperators | None = None,
        upload: Upload = copy_in_place,
    ) -> None:
        """`operators` None: plain torch, for CPUs. `upload` copies to where the weights are."""
        self.config: DecoderConfig = config
        self.spec = config.spec
        self.weights: DecoderWeights = weights
        self.adapters: AdapterSlots = AdapterSlots(config.spec, weights.embedding)
        self._operators = operators or TorchOperators()
        windows = config.traits.layer_windows or (None,) * self.spec.num_layers
        self._attention_traits = tuple(
            PLAIN
            if layer.sinks is None and window is None
            else AttentionTraits(window_tokens=window, sinks=layer.sinks)
            for layer, window in zip(weights.layers, windows, strict=True)
        )
        table = torch.from_numpy(rotary_table(config.rope, self.spec.head_dim, max_model_len + _LOOK_AHEAD_TOKENS))
        device, long_prompts = weights.embedding.device, exponents_and_factors(config.rope, self.spec.head_dim)
        self._rotary = moved(device, upload, table.to(weights.embedding.dtype))
        self._prompt_rotary = moved(device, upload, torch.from_numpy(long_prompts))
        self._attention_factor = float(inverse_frequencies(config.rope, self.spec.head_dim)[1])

    def start(self, token_ids: Tensor, positions: Tensor, prompts: Iterable[PromptPiece] = ()) -> tuple[Tensor, Tensor]:
        return self.embed(token_ids), self.rotary(positions, prompts)

    def embed(self, token_ids: Tensor) -> Tensor:
        """[tokens] -> hidden states [tokens, hidden_size]."""
        return self._operators.embedding(self.weights.embedding, token_ids)

    def rotary(self, positions: Tensor, prompts: Iterable[PromptPiece] = ()) -> Tensor:
        """[tokens] -> [2, tokens, 1, head_dim], for `forward_layers`. `prompts`: what of the batch is of prompts."""
        rotary = self._rotary.index_select(0, positions)
        limit = self.config.rope.own_kv_beyond_tokens
        if limit is not None:
            for piece in prompts:
                if piece.prompt_tokens > limit and piece.first < piece.last:
                    part = slice(piece.first, piece.last)
                    rotary[part] = self._rotary_of_prompt(positions[part], piece.prompt_tokens)
        return rotary.transpose(0, 1).unsqueeze(2)

    def _rotary_of_prompt(self, positions: Tensor, prompt_tokens: int) -> Tensor:
        """[tokens, 2, head_dim], as `rotary_table` has them."""
        theta = theta_of_prompt(self.config.rope, self.spec.head_dim, prompt_tokens)
        exponents, factors = self._prompt_rotary
        angles = positions[:, None].float() / (torch.pow(theta, exponents) * factors)
        cos, sin = angles.cos() * self._attention_factor, angles.sin() * self._attention_factor
        return torch.stack((torch.cat((cos, cos), dim=1), torch.cat((-sin, sin), dim=1)), dim=1)

    def forward_layers(
        self,
        hidden: Tensor,
        rotary: Tensor,
        attention: Attention,
        first_layer: int,
        last_layer: int,
        adapters: AdapterBatch | None = None,
    ) -> Tensor:
        """Layers `[first_layer, last_layer)` over hidden states `[tokens, hidden_size]`. `adapters`: of its tokens."""
        for index in range(first_layer, last_layer):
            layer = self.weights.layers[index]
            with self._operators.passing():
                heads = self.attention_inputs(index, hidden, rotary, adapters)
                attended = attention(index, *heads, self._attention_traits[index])
                if adapters is None:
                    hidden = layer.output.plus(attended, hidden)
                else:
                    hidden = adapters.plus(index, Site.OUTPUT, layer.output, attended, hidden)
            if adapters is None:
                hidden = self._mlp_by_tiles(layer, hidden)
            else:
                with self._operators.passing():
                    hidden = self._adapted_mlp(index, layer, hidden, adapters)
        return hidden

    def attention_traits(self, index: int) -> AttentionTraits:
        return self._attention_traits[index]

    def after_attention(self, index: int, attended: Tensor, hidden: Tensor) -> Tensor:
        """The part of a layer after its attention, with both residual connections; `hidden` may be overwritten."""
        layer = self.weights.layers[index]
        return self._mlp_by_tiles(layer, layer.output.plus(attended, hidden))

    def final_states(self, hidden: Tensor) -> Tensor:
        """Hidden states after the last layer -> the final norm's output, as the head reads it, float32. Both are
        [tokens, hidden_size].
        """
        norm = self.weights.final_norm
        return functional.rms_norm(hidden.float(), norm.shape, norm.float(), self.config.rms_norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden_size] after the last layer -> float32 [tokens, vocab_size]."""
        norm, eps = self.weights.final_norm, self.config.rms_norm_eps
        head = self.weights.lm_head
        if isinstance(head, CompiledLinear):
            return head.float_product(self.final_states(hidden))
        operators = self._operators
        logits = operators.floats(operators.product(head, functional.rms_norm(hidden, norm.shape, norm, eps)))
        if hidden.device.type == "cpu" and hidden.dtype != torch.float32 and head.has_plain_rows:
            sharpen_top_logits(logits, functional.rms_norm(hidden.float(), norm.shape, norm.float(), eps), head)
        return logits

    def attention_inputs(
        self, index: int, hidden: Tensor, rotary: Tensor, adapters: AdapterBatch | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The part of a layer before its attention: query [tokens, heads, head_dim], key and value [tokens, kv_heads,
        head_dim].
        """
        layer, eps = self.weights.layers[index], self.config.rms_norm_eps
        heads, kv_heads = self.spec.num_heads, self.spec.num_kv_heads
        normed = self._operators.rms_norm(hidden, layer.input_norm, eps)
        stacked = self._operators.product(layer.qkv, normed)
        if adapters is not None:
            adapters.add(index, Site.QKV, normed, stacked)
        qkv = stacked.view(normed.shape[0], heads + 2 * kv_heads, -1)
        query_key = self._operators.rotate(qkv[:, : heads + kv_heads], rotary, layer.head_norms, heads, eps)
        return query_key[:, :heads], query_key[:, heads:], qkv[:, heads + kv_heads :]

    def _mlp_by_tiles(self, layer: LayerWeights, hidden: Tensor) -> Tensor:
        """With the residual connection."""
        num_tokens = hidden.shape[0]
        tile_tokens = (layer.feed_forward.is_tiled and self._operators.mlp_tile_tokens) or num_tokens
        if num_tokens <= tile_tokens:
            return self._mlp(layer, hidden)
        tiles = [self._mlp(layer, hidden[first : first + tile_tokens]) for first in range(0, num_tokens, tile_tokens)]
        # What was added in place, tile by tile, is whole.
        return hidden if tiles[0].data_ptr() == hidden.data_ptr() else torch.cat(tiles)

    def _mlp(self, layer: LayerWeights, hidden: Tensor) -> Tensor:
        with self._operators.passing():
            normed = self._operators.rms_norm(hidden, layer.post_attention_norm, self.config.rms_norm_eps)
            return layer.feed_forward.plus(normed, hidden, self._operators)

    def _adapted_mlp(self, index: int, layer: LayerWeights, hidden: Tensor, adapters: AdapterBatch) -> Tensor:
        mlp = layer.feed_forward
        if self.spec.is_moe:  # its adapters change attention only
            return self._mlp(layer, hidden)
        assert isinstance(mlp, GatedMlp), "a dense model's layers have an ordinary MLP"
        normed = self._operators.rms_norm(hidden, layer.post_attention_norm, self.config.rms_norm_eps)
        gate_up = self._operators.product(mlp.gate_up, normed)
        adapters.add(index, Site.GATE_UP, normed, gate_up)
        inner = self._operators.silu_product(gate_up)
        return adapters.plus(index, Site.DOWN, mlp.down, inner, hidden)
