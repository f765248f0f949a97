"""Reads a decoder's weights from safetensors files, fused and laid out as the decoder wants them."""

import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from pdmux_actor.models.bytes_in_flight import BytesInFlight
from pdmux_actor.models.config import DecoderConfig
from pdmux_actor.models.decoder import DecoderWeights, LayerWeights
from pdmux_actor.models.feed_forward import GatedMlp
from pdmux_actor.models.linear import Linear, MakeProjection, Projection
from pdmux_actor.models.load_progress import OnProgress, ignore_progress
from pdmux_actor.models.load_threads import on_threads
from pdmux_actor.models.operators import HeadNorms
from pdmux_actor.models.tensor_reader import TensorReader
from profiler.specs import ModelSpec

_LOG = logging.getLogger(__name__)
_DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def torch_dtype(name: str) -> torch.dtype:
    """`name` is one of profiler.specs.DTYPE_BYTES."""
    return _DTYPES[name]


def load_weights(
    model: str,
    folder: Path,
    config: DecoderConfig,
    device: torch.device | None = None,
    make_projection: MakeProjection = Linear,
    *,
    num_threads: int = 1,
    on_progress: OnProgress = ignore_progress,
) -> DecoderWeights:
    """Onto `device`; None is the CPU. What is held beside the weights is the largest product's, in its plain layout.

    Raises:
        ModelLoadError: a file or tensor is missing, broken or of another shape than config.json implies.
    """
    spec = config.spec
    reader = TensorReader(model, folder, dtype=torch_dtype(spec.dtype), device=device, on_progress=on_progress)
    in_flight = BytesInFlight(_largest_product_bytes(spec))

    def load_layer(index: int) -> LayerWeights:
        return _load_layer(reader, in_flight, config, make_projection, f"model.layers.{index}")

    embedding = reader.load("model.embed_tokens.weight", spec.vocab_size, spec.hidden_size)
    layers = on_threads(load_layer, range(spec.num_layers), num_threads)
    final_norm = reader.load("model.norm.weight", spec.hidden_size)
    if spec.tie_word_embeddings:
        lm_head: Projection = Linear(embedding, packed=False)
    else:
        lm_head = make_projection(reader.load("lm_head.weight", spec.vocab_size, spec.hidden_size), None)
    unread = {name for name in reader.unread if not name.endswith("rotary_emb.inv_freq") and name != "lm_head.weight"}
    if unread:
        _LOG.warning("%s: %d tensors of the checkpoint are not used, among them %s", model, len(unread), min(unread))
    return DecoderWeights(embedding=embedding, layers=layers, final_norm=final_norm, lm_head=lm_head)


def _load_layer(
    reader: TensorReader,
    in_flight: BytesInFlight,
    config: DecoderConfig,
    make_projection: MakeProjection,
    prefix: str,
) -> LayerWeights:
    spec = config.spec
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    q_dim, kv_dim = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    qkv = {"q_proj": q_dim, "k_proj": kv_dim, "v_proj": kv_dim}
    gate_up = {"gate_proj": spec.intermediate_size, "up_proj": spec.intermediate_size}

    def stacked(owner: str, parts: Mapping[str, int], kind: str, *trailing: int) -> Tensor:
        return reader.load_stacked({f"{owner}.{name}.{kind}": size for name, size in parts.items()}, *trailing)

    def projection(owner: str, parts: Mapping[str, int], in_size: int, has_bias: bool) -> Projection:
        with in_flight.hold(sum(parts.values()) * in_size * reader.dtype.itemsize):
            weight = stacked(owner, parts, "weight", in_size)
            return make_projection(weight, stacked(owner, parts, "bias") if has_bias else None)

    hidden = spec.hidden_size
    return LayerWeights(
        input_norm=reader.load(f"{prefix}.input_layernorm.weight", hidden),
        qkv=projection(attention, qkv, hidden, config.traits.qkv_bias),
        head_norms=HeadNorms(
            query=reader.load(f"{attention}.q_norm.weight", spec.head_dim),
            key=reader.load(f"{attention}.k_norm.weight", spec.head_dim),
        )
        if config.traits.qk_norm
        else None,
        output=projection(attention, {"o_proj": hidden}, q_dim, config.traits.output_bias),
        post_attention_norm=reader.load(f"{prefix}.post_attention_layernorm.weight", hidden),
        feed_forward=GatedMlp(
            gate_up=projection(mlp, gate_up, hidden, config.traits.mlp_bias),
            down=projection(mlp, {"down_proj": hidden}, spec.intermediate_size, config.traits.mlp_bias),
        ),
    )


def _largest_product_bytes(spec: ModelSpec) -> int:
    """Of one that is laid anew for products: an embedding stays as it was read."""
    qkv = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    rows = max(qkv, 2 * spec.intermediate_size, 0 if spec.tie_word_embeddings else spec.vocab_size)
    return rows * spec.hidden_size * spec.dtype_bytes
