"""Writes small checkpoints with random weights in Hugging Face layout, for demos and tests. Needs no torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from pdmux_actor.models.demo_tokenizer import (
    CHAT_TEMPLATE,
    END_OF_TEXT,
    MOST_DEMO_IDS,
    TURN_END,
    TURN_START,
    build_demo_tokenizer,
)
from profiler.families.entry import DecoderTraits, Traits
from profiler.families.registry import FAMILIES

Floats = npt.NDArray[np.float32]

# Families that muxfleet's own engine serves, by the model_type of config.json.
_FAMILIES: Mapping[str, tuple[str, Traits]] = MappingProxyType(
    {family.model_type: (name, family.traits) for name, family in FAMILIES.items() if family.traits is not None}
)
# A matrix multiplies the norm of its input by about this much: layers then outweigh the embedding in the residual
# stream, and greedy output wanders through the vocabulary instead of settling on a loop.
_GAIN = 1.6
_EMBEDDING_STD = 0.5
_VECTOR_STD = 0.08
# Logits of tokens that are no plain text are damped, so that a demo's answers are readable.
_NON_TEXT_SCALE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointShape:
    """`model_type` is that of a family in profiler/families that the engine serves; float32. Experts are for
    families that are mixtures; each is as large as an MLP of the others.
    """

    model_type: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int = 640
    max_position_embeddings: int = 4096
    tie_word_embeddings: bool = False
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, Any] | None = None
    sliding_window: int | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    num_experts: int = 8
    experts_per_token: int = 2


DEMO_SHAPES: Mapping[str, CheckpointShape] = MappingProxyType(
    {
        "demo-llama": CheckpointShape(
            model_type="llama",
            num_layers=4,
            hidden_size=128,
            intermediate_size=384,
            num_heads=4,
            num_kv_heads=2,
            head_dim=32,
        ),
        "demo-qwen2": CheckpointShape(
            model_type="qwen2",
            num_layers=6,
            hidden_size=192,
            intermediate_size=512,
            num_heads=6,
            num_kv_heads=2,
            head_dim=32,
            rope_theta=1_000_000.0,
        ),
        "demo-qwen3": CheckpointShape(
            model_type="qwen3",
            num_layers=5,
            hidden_size=256,
            intermediate_size=640,
            num_heads=8,
            num_kv_heads=4,
            head_dim=64,
            rope_theta=1_000_000.0,
        ),
    }
)


def write_random_checkpoint(folder: Path, shape: CheckpointShape, seed: int) -> None:
    """Same shape and seed, same bytes. Creates `folder`; overwrites the files it writes."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_demo_tokenizer(min(shape.vocab_size, MOST_DEMO_IDS))
    end_ids = [tokenizer.token_to_id(TURN_END), tokenizer.token_to_id(END_OF_TEXT)]
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    config = _config(shape, end_ids)
    traits = _FAMILIES[shape.model_type][1](config)
    if traits.mixture is not None:
        config |= _of_mixture(shape)
        traits = _FAMILIES[shape.model_type][1](config)
    tensors = _random_tensors(shape, traits, seed, _text_scale(tokenizer, shape.vocab_size))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"eos_token_id": end_ids, "pad_token_id": end_ids[1]})
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": shape.max_position_embeddings,
            "eos_token": TURN_END,
            "pad_token": END_OF_TEXT,
            "additional_special_tokens": [TURN_START, TURN_END],
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _config(shape: CheckpointShape, end_ids: list[int | None]) -> dict[str, Any]:
    return {
        "architectures": [_FAMILIES[shape.model_type][0]],
        "model_type": shape.model_type,
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None if shape.rope_scaling is None else dict(shape.rope_scaling),
        "sliding_window": shape.sliding_window,
        "attention_bias": shape.attention_bias,
        "mlp_bias": shape.mlp_bias,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "eos_token_id": end_ids[0],
        "torch_dtype": "float32",
    }


def _of_mixture(shape: CheckpointShape) -> dict[str, Any]:
    return {
        "num_experts": shape.num_experts,
        "num_local_experts": shape.num_experts,
        "num_experts_per_tok": shape.experts_per_token,
        "moe_intermediate_size": shape.intermediate_size,
        "norm_topk_prob": True,
    }


def _text_scale(tokenizer: Tokenizer, vocab_size: int) -> Floats:
    """`[vocab_size]`: 1 for ids that decode to ASCII text on their own and for end tokens, less for the others, those
    among them that are beyond the tokenizer's.
    """
    ends = {tokenizer.token_to_id(TURN_END), tokenizer.token_to_id(END_OF_TEXT)}
    texts = (tokenizer.decode([token_id]) for token_id in range(tokenizer.get_vocab_size()))
    keep = [i in ends or (bool(t) and t.isascii() and (t.isprintable() or t == "\n")) for i, t in enumerate(texts)]
    scale = np.full(vocab_size, _NON_TEXT_SCALE, dtype=np.float32)
    scale[np.flatnonzero(keep)] = 1.0
    return scale


def _random_tensors(shape: CheckpointShape, traits: DecoderTraits, seed: int, text_scale: Floats) -> dict[str, Floats]:
    generator = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, std: float | None = None) -> Floats:
        scale = np.float32(_GAIN / columns**0.5 if std is None else std)
        return (generator.standard_normal((rows, columns), dtype=np.float32) * scale).astype(np.float32)

    def vector(size: int) -> Floats:
        return (generator.standard_normal(size, dtype=np.float32) * np.float32(_VECTOR_STD)).astype(np.float32)

    def norm(size: int) -> Floats:
        return 1 + vector(size)

    hidden, q_dim, kv_dim = shape.hidden_size, shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    tensors = {"model.embed_tokens.weight": matrix(shape.vocab_size, hidden, _EMBEDDING_STD)}
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}"
        attention = f"{prefix}.self_attn"
        tensors[f"{prefix}.input_layernorm.weight"] = norm(hidden)
        tensors[f"{prefix}.post_attention_layernorm.weight"] = norm(hidden)
        for name, size in (("q_proj", q_dim), ("k_proj", kv_dim), ("v_proj", kv_dim)):
            tensors[f"{attention}.{name}.weight"] = matrix(size, hidden)
            if traits.qkv_bias:
                tensors[f"{attention}.{name}.bias"] = vector(size)
        tensors[f"{attention}.o_proj.weight"] = matrix(hidden, q_dim)
        if traits.output_bias:
            tensors[f"{attention}.o_proj.bias"] = vector(hidden)
        if traits.qk_norm:
            tensors[f"{attention}.q_norm.weight"] = norm(shape.head_dim)
            tensors[f"{attention}.k_norm.weight"] = norm(shape.head_dim)
        if traits.has_sinks:
            tensors[f"{attention}.sinks"] = vector(shape.num_heads)
        inner, mixture = shape.intermediate_size, traits.mixture
        sizes = ((inner, hidden), (inner, hidden), (hidden, inner))
        if mixture is not None and mixture.has_biases:
            tensors[f"{prefix}.{mixture.router}.bias"] = vector(shape.num_experts)
        if mixture is not None and mixture.is_stacked:
            tensors[f"{prefix}.{mixture.router}.weight"] = matrix(shape.num_experts, hidden)
            for name, rows, columns in (("gate_up_proj", hidden, 2 * inner), ("down_proj", inner, hidden)):
                stack = np.stack([matrix(columns, rows).T for _ in range(shape.num_experts)])
                tensors[f"{prefix}.{mixture.experts}.{name}"] = stack
                tensors[f"{prefix}.{mixture.experts}.{name}_bias"] = np.stack(
                    [vector(columns) for _ in range(shape.num_experts)]
                )
            continue
        if mixture is not None:
            tensors[f"{prefix}.{mixture.router}.weight"] = matrix(shape.num_experts, hidden)
            for expert in range(shape.num_experts):
                for name, (rows, columns) in zip((mixture.gate, mixture.up, mixture.down), sizes, strict=True):
                    tensors[f"{prefix}.{mixture.experts}.{expert}.{name}.weight"] = matrix(rows, columns)
            continue
        for name, (rows, columns) in zip(("gate_proj", "up_proj", "down_proj"), sizes, strict=True):
            tensors[f"{prefix}.mlp.{name}.weight"] = matrix(rows, columns)
            if traits.mlp_bias:
                tensors[f"{prefix}.mlp.{name}.bias"] = vector(rows)
    tensors["model.norm.weight"] = norm(hidden)
    if not shape.tie_word_embeddings:
        tensors["lm_head.weight"] = matrix(shape.vocab_size, hidden) * text_scale[:, None]
    return tensors


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
