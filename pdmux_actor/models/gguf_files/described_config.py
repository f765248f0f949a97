"""The config.json that a GGUF file implies."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.gguf_files.opened_file import GgufFile
from profiler.weight_formats import GGUF_PLAIN

GGUF = "gguf"
"""`quant_method` of such a config.json."""

_ROPE_FACTORS = "rope_freqs.weight"
_NUMBERS: Mapping[str, str] = MappingProxyType(
    {
        "hidden_size": "embedding_length",
        "num_hidden_layers": "block_count",
        "num_attention_heads": "attention.head_count",
        "intermediate_size": "feed_forward_length",
        "max_position_embeddings": "context_length",
        "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    }
)
_SCALING: Mapping[str, str] = MappingProxyType(
    {
        "original_max_position_embeddings": "original_context_length",
        "beta_fast": "yarn_beta_fast",
        "beta_slow": "yarn_beta_slow",
    }
)
_FAMILIES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "llama": ("LlamaForCausalLM", "llama"),  # Mistral's, too
        "qwen2": ("Qwen2ForCausalLM", "qwen2"),
        "qwen3": ("Qwen3ForCausalLM", "qwen3"),
        "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe"),
    }
)
_MIXTRAL = ("MixtralForCausalLM", "mixtral")


def _refuse_unreadable(model: str, file: GgufFile) -> None:
    """Of each type a block of zeros is tried."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    seen: dict[str, str] = {}
    for name, place in file.tensors.items():
        seen.setdefault(place.type_name, name)
    for type_name, tensor in seen.items():
        kind = GGMLQuantizationType[type_name]
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError as error:
            reason = f"{file.path}: tensor {tensor} holds {type_name}"
            remedy = "quantise it anew (llama.cpp: llama-quantize), for example to Q4_K_M"
            raise ModelLoadError(model=model, reason=reason, remedy=remedy) from error


def described_config(model: str, file: GgufFile) -> dict[str, Any]:
    """Raises ModelLoadError: no family that is served from GGUF files, or a field is missing or not supported."""
    if file.architecture not in _FAMILIES:
        raise _refused(model, file, "general.architecture", f"one of {', '.join(_FAMILIES)}")
    experts = file.field("expert_count") or 0
    architecture, model_type = _FAMILIES[file.architecture]
    if experts and architecture == "LlamaForCausalLM":
        architecture, model_type = _MIXTRAL
    config: dict[str, Any] = {"architectures": [architecture], "model_type": model_type}
    left_out = [key for key in ("feed_forward_length",) if experts and file.field(key) is None]
    config |= {name: _number(model, file, key) for name, key in _NUMBERS.items() if key not in left_out}
    heads = config["num_attention_heads"]
    config |= {
        "num_key_value_heads": file.field("attention.head_count_kv") or heads,
        "head_dim": file.field("attention.key_length") or config["hidden_size"] // heads,
        "vocab_size": _place(model, file, "token_embd.weight").shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
        "hidden_act": "silu",
        "dtype": _dtype(file),
        "rope_theta": file.field("rope.freq_base") or 10_000.0,
        "quantization_config": {"quant_method": GGUF, "types": sorted(_product_types(file))},
        "bos_token_id": file.fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.fields.get("tokenizer.ggml.eos_token_id"),
    }
    _refuse_unreadable(model, file)
    if experts:
        config |= _mixture(model, file, int(experts))
    scaling = _rope_scaling(model, file, config["head_dim"])
    if scaling is not None:
        config["rope_scaling"] = scaling
    _refuse_unsupported(model, file, config["head_dim"])
    return config


def end_token_ids(file: GgufFile) -> list[int]:
    """Ids that end a turn or the text."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = (file.fields.get(f"tokenizer.ggml.{key}") for key in keys)
    return sorted({int(token_id) for token_id in found if token_id is not None})


def _mixture(model: str, file: GgufFile, experts: int) -> dict[str, Any]:
    inner = file.field("expert_feed_forward_length") or _number(model, file, "feed_forward_length")
    count = {"num_local_experts": experts} if file.architecture == "llama" else {"num_experts": experts}
    sizes = {"intermediate_size": inner, "moe_intermediate_size": inner, "norm_topk_prob": True}
    return {**count, **sizes, "num_experts_per_tok": _number(model, file, "expert_used_count")}


def _rope_scaling(model: str, file: GgufFile, head_dim: int) -> dict[str, Any] | None:
    """Llama 3's frequencies are a tensor of factors, read as LongRoPE's, the same for every length."""
    if _ROPE_FACTORS in file.tensors:
        place = file.tensors[_ROPE_FACTORS]
        if place.type_name != "F32" or place.shape != (head_dim // 2,):
            reason = f"{file.path}: tensor {_ROPE_FACTORS} has shape {list(place.shape)} and holds {place.type_name}"
            raise ModelLoadError(model=model, reason=reason, remedy=f"it must hold {head_dim // 2} numbers of F32")
        factors = np.fromfile(place.path, np.float32, place.shape[0], offset=place.offset).tolist()
        return {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0}
    kind, factor = file.field("rope.scaling.type"), file.field("rope.scaling.factor")
    if kind is None:  # as llama.cpp takes it; files of 2023 have the older name
        factor = factor or file.field("rope.scale_linear")
        kind = "none" if factor in (None, 0, 1) else "linear"
    if kind == "none":
        return None
    named = {name: file.field(f"rope.scaling.{key}") for name, key in _SCALING.items()}
    return {"rope_type": kind, "factor": factor, **{name: value for name, value in named.items() if value is not None}}


def _refuse_unsupported(model: str, file: GgufFile, head_dim: int) -> None:
    arch = file.architecture
    expected = {
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "attention.sliding_window": 0,
        "expert_shared_count": 0,
        "rope.scaling.attn_factor": 1.0,
        "rope.scaling.yarn_attn_factor": 1.0,
        "rope.scaling.yarn_log_multiplier": 0.0,
    }
    for key, value in expected.items():
        given = file.field(key)
        if given is not None and given != value:
            raise _refused(model, file, f"{arch}.{key}", f"one with {value}, or convert it to safetensors")


def _dtype(file: GgufFile) -> str:
    types = {place.type_name for place in file.tensors.values() if len(place.shape) > 1}
    if types <= {"F32", "F64"}:
        return "float32"
    return "float16" if types <= {"F32", "F16"} else "bfloat16"


def _product_types(file: GgufFile) -> set[str]:
    """Of the weights that stay quantised: not the embedding's, the classifier's and the routers'."""
    products = (
        place.type_name
        for name, place in file.tensors.items()
        if name.startswith("blk.") and len(place.shape) > 1 and ".ffn_gate_inp." not in name
    )
    return set(products) or set(GGUF_PLAIN)


def _number(model: str, file: GgufFile, key: str) -> int | float:
    value = file.field(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise _refused(model, file, f"{file.architecture}.{key}", "one where it is a number above 0")
    return value


def _place(model: str, file: GgufFile, name: str) -> Any:  # noqa: ANN401
    if name not in file.tensors:
        raise ModelLoadError(
            model=model, reason=f"{file.path}: tensor {name} is missing", remedy="use a file of a whole model"
        )
    return file.tensors[name]


def _refused(model: str, file: GgufFile, key: str, instead: str) -> ModelLoadError:
    reason = f"{file.path}: {key}={file.fields.get(key)!r} is not supported"
    return ModelLoadError(model=model, reason=reason, remedy=f"use {instead}")
