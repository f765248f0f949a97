"""Reads a decoder's weights from its files, fused and laid out as the decoder wants them."""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from pdmux_actor.models.bytes_in_flight import BytesInFlight
from pdmux_actor.models.compiled.compiled_kernels import BY_TORCH, CompiledKernels
from pdmux_actor.models.config import DecoderConfig
from pdmux_actor.models.decoder import DecoderWeights, LayerWeights
from pdmux_actor.models.expert_stacks import ExpertStacks
from pdmux_actor.models.feed_forward import FeedForward, GatedMlp
from pdmux_actor.models.gguf_files.file_tensors import gguf_tensors
from pdmux_actor.models.linear import MakeProjection, plain_projection
from pdmux_actor.models.load_progress import OnProgress, ignore_progress
from pdmux_actor.models.load_threads import on_threads
from pdmux_actor.models.mixture_loading import load_mixture
from pdmux_actor.models.operators import HeadNorms
from pdmux_actor.models.projection_reader import ProjectionReader
from pdmux_actor.models.rank_share import WHOLE, RankShare
from pdmux_actor.models.tensor_reader import TensorReader
from pdmux_actor.models.uploads import Upload, copy_in_place
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
    make_projection: MakeProjection = plain_projection,
    kernels: CompiledKernels = BY_TORCH,
    *,
    upload: Upload = copy_in_place,
    num_threads: int = 1,
    on_progress: OnProgress = ignore_progress,
    share: RankShare = WHOLE,
) -> DecoderWeights:
    """Onto `device`, by `upload`; None is the CPU. `share` is what is read of the model that `config` describes;
    `kernels` multiply with its head. What is held beside the weights is the largest product's, in its plain layout.

    Raises:
        ModelLoadError: a file or tensor is missing, broken or of another shape than config.json implies.
    """
    spec, mixture = config.spec, config.traits.mixture
    reader = TensorReader(
        model,
        folder,
        dtype=torch_dtype(spec.dtype),
        device=device,
        upload=upload,
        on_progress=on_progress,
        readers=share.num_ranks,
        stored=config.stored,
        gguf=gguf_tensors(model, folder, spec.head_dim, mixture) if config.is_gguf else None,
        keeps=spec.weights,
        stacks=None if mixture is None or not mixture.is_stacked else ExpertStacks(mixture, spec.num_experts),
    )
    projections = ProjectionReader(
        tensors=reader,
        in_flight=BytesInFlight(_largest_product_bytes(share.spec_of(spec))),
        make=make_projection,
        share=share,
        is_quantised=spec.weights is not None,
    )
    embedding = reader.load("model.embed_tokens.weight", spec.vocab_size, spec.hidden_size)
    if spec.tie_word_embeddings and share.divided is None:
        embedding = kernels.laid(embedding, spec)  # once more, while nothing else is held
    layers = on_threads(partial(_load_layer, projections, config), range(spec.num_layers), num_threads)
    final_norm = reader.load("model.norm.weight", spec.hidden_size)
    rows = spec.vocab_size // share.num_ranks
    if not spec.tie_word_embeddings:
        lm_head = kernels.dense(reader.load("lm_head.weight", rows, spec.hidden_size, part=share.divided))
    elif share.divided is None:
        lm_head = kernels.tied(embedding)
    else:
        lm_head = kernels.tied(embedding[share.rank * rows : (share.rank + 1) * rows])
    unread = {name for name in reader.unread if not name.endswith("rotary_emb.inv_freq") and name != "lm_head.weight"}
    if unread and share.leads:
        _LOG.warning("%s: %d tensors of the checkpoint are not used, among them %s", model, len(unread), min(unread))
    return DecoderWeights(embedding=embedding, layers=layers, final_norm=final_norm, lm_head=lm_head)


def _load_layer(projections: ProjectionReader, config: DecoderConfig, index: int) -> LayerWeights:
    reader, share = projections.tensors, projections.share
    whole, spec, traits = config.spec, share.spec_of(config.spec), config.traits
    prefix, hidden = f"model.layers.{index}", spec.hidden_size
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    q_dim, kv_dim = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    of_kv = share.kv_heads(whole)
    qkv = {
        f"{attention}.q_proj": (q_dim, share.divided),
        f"{attention}.k_proj": (kv_dim, of_kv),
        f"{attention}.v_proj": (kv_dim, of_kv),
    }

    def feed_forward() -> FeedForward:
        mixture = traits.mixture
        if mixture is not None and index not in mixture.dense_layers:
            return load_mixture(projections, mixture, spec, prefix)
        gate_up = {f"{mlp}.{name}": (spec.intermediate_size, share.divided) for name in ("gate_proj", "up_proj")}
        down, has_bias = f"{mlp}.down_proj", traits.mlp_bias
        return GatedMlp(
            gate_up=projections.by_rows(gate_up, hidden, has_bias=has_bias),
            down=projections.by_columns(down, hidden, spec.intermediate_size, has_bias=has_bias),
        )

    return LayerWeights(
        input_norm=reader.load(f"{prefix}.input_layernorm.weight", hidden),
        qkv=projections.by_rows(qkv, hidden, has_bias=traits.qkv_bias),
        head_norms=_head_norms(reader, attention, spec.head_dim) if traits.qk_norm else None,
        output=projections.by_columns(f"{attention}.o_proj", hidden, q_dim, has_bias=traits.output_bias),
        post_attention_norm=reader.load(f"{prefix}.post_attention_layernorm.weight", hidden),
        feed_forward=feed_forward(),
        sinks=reader.load(f"{attention}.sinks", spec.num_heads, part=share.divided) if traits.has_sinks else None,
    )


def _head_norms(reader: TensorReader, attention: str, head_dim: int) -> HeadNorms:
    query, key = (reader.load(f"{attention}.{name}.weight", head_dim) for name in ("q_norm", "k_norm"))
    return HeadNorms(query=query, key=key)


def _largest_product_bytes(spec: ModelSpec) -> int:
    """Of one that is laid anew for products: an embedding stays as it was read."""
    qkv = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    rows = max(
        qkv,
        2 * spec.intermediate_size,
        2 * spec.expert_intermediate_size,
        0 if spec.tie_word_embeddings else spec.vocab_size,
    )
    return rows * spec.hidden_size * spec.dtype_bytes
