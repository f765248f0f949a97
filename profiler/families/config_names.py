"""Reads a config.json whose fields have other names than Llama's, or leave out what transformers assumes."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from profiler.config_fields import count

Renamed = Callable[[Mapping[str, Any]], Mapping[str, Any]]
# Llama's name -> what others call it, the first that is there.
_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "hidden_size": ("n_embd", "d_model"),
        "num_hidden_layers": ("n_layer", "num_layers", "n_layers", "decoder_layers"),
        "num_attention_heads": ("n_head", "n_heads", "num_heads", "decoder_attention_heads"),
        "num_key_value_heads": ("num_kv_heads", "kv_n_heads"),
        "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size", "decoder_ffn_dim"),
        "max_position_embeddings": ("n_positions", "max_seq_len", "n_ctx", "seq_length"),
        "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
        "num_experts_per_tok": ("moe_k", "moe_topk", "num_experts_per_token", "top_k_experts"),
        "moe_intermediate_size": ("expert_intermediate_size", "moe_ffn_hidden_size"),
        "num_shared_experts": ("n_shared_experts", "moe_num_shared_experts"),
        "first_k_dense_replace": ("num_dense_layers", "moe_layer_start_index"),
    }
)


def llama_names(config: Mapping[str, Any], *, is_gated: bool = True, **assumed: object) -> Mapping[str, Any]:
    """The config with Llama's names beside its own. `assumed` are values of fields that it leaves out.

    An MLP of two matrices (`is_gated` False) has as many parameters, and takes as many FLOPs, as one of three whose
    middle is two thirds as wide: that is the `intermediate_size` given here.
    """
    named = {**assumed, **{field: value for field, value in config.items() if value is not None}}
    for field, others in _NAMES.items():
        found = next((config[other] for other in others if config.get(other) is not None), None)
        if config.get(field) is None and found is not None:
            named[field] = found
    if named.get("intermediate_size") is None and named.get("hidden_size") is not None:
        named["intermediate_size"] = 4 * count(named, "hidden_size")
    if not is_gated:
        named["intermediate_size"] = -(-2 * count(named, "intermediate_size") // 3)
    return named
