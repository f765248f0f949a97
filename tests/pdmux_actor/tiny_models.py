"""Tiny random checkpoints of transformers' architectures. Imports transformers when it is asked for one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiler.families.entry import ModelFamily

# As far as a configuration has them, by its own names or Llama's.
SIZES: Mapping[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "ffn_dim": 96,
    "n_inner": 96,
    "word_embed_proj_dim": 64,
    "sliding_window": 40,
    "max_window_layers": 1,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_shared_experts": 1,
    "moe_num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_layer_start_index": 1,
    "decoder_sparse_step": 1,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "qk_head_dim": 16,
    "v_head_dim": 12,
    "query_pre_attn_scalar": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENT = frozenset({"axk1", "deepseek_v2", "deepseek_v3", "minicpm3", "youtu"})
OWN_SIZES: Mapping[str, Mapping[str, Any]] = {
    model_type: {"head_dim": 8, "num_key_value_heads": 4} for model_type in LATENT
}


def tiny_config(model_type: str, **changes: Any) -> Any:
    import inspect

    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    known = {name for base in kind.__mro__ for name in getattr(base, "__annotations__", {})}
    known |= set(inspect.signature(kind.__init__).parameters)
    names = getattr(kind, "attribute_map", {})
    sizes = {**SIZES, **OWN_SIZES.get(model_type, {}), **changes}
    given = {
        name if name in known else names[name]: value
        for name, value in sizes.items()
        if name in known or names.get(name) in known
    }
    standard = kind()
    for name in ("layer_types", "mlp_layer_types", "no_rope_layers"):
        kinds = getattr(standard, name, None)
        if name in known and kinds is not None and name not in changes:
            given[name] = _three_of(list(kinds))
    return kind(**given)


def has_layer_windows(family: ModelFamily) -> bool:
    """Whether layers of the native decoder see windows: of other native families a window limits the length."""
    return family.traits is not None and bool(family.traits(tiny_config(family.model_type).to_dict()).layer_windows)


def _three_of(kinds: list[Any]) -> list[Any]:
    """The first three, and among them another kind, if there is one."""
    other = next((kind for kind in kinds if kind != kinds[0]), kinds[0])
    return kinds[:3] if other in kinds[:3] else [kinds[0], other, kinds[0]]


def write_tiny_checkpoint(folder: Path, model_type: str, **changes: Any) -> Any:
    """Returns the model, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(11)
    model = AutoModelForCausalLM.from_config(tiny_config(model_type, **changes), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # as initialised, a model hardly looks at what it was told
                parameter.mul_(4.0)
    model.save_pretrained(folder)
    return model
