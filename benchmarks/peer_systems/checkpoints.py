"""The checkpoints that all systems serve, and one of them as the GGUF file of the same weights, in bfloat16."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import gguf
import numpy as np
import torch
from engines.llama_checkpoint import llama_checkpoint, qwen_checkpoint
from peer_systems.environments import NotInstallable
from safetensors import safe_open

from deploy.local.demo_weights import demo_weights

_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_NAMES_OF_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def gguf_of(checkpoint: Path, folder: Path) -> Path:
    """Written once, into `folder`. Requests carry token ids, so the vocabulary is only a name for each."""
    target = folder / f"{checkpoint.name}-bf16.gguf"
    if target.exists():
        return target
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama":
        raise NotInstallable(f"llama.cpp is given Llama checkpoints here, {checkpoint.name} is {config['model_type']}")
    unfinished = target.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, "llama")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    _add_vocabulary(writer, config["vocab_size"])
    with safe_open(checkpoint / "model.safetensors", "pt") as stored:
        for name in stored.keys():  # noqa: SIM118 - no mapping
            weight = stored.get_tensor(name)
            if "q_proj" in name or "k_proj" in name:
                weight = _interleaved(weight, heads if "q_proj" in name else kv_heads)
            _add(writer, _name_of(name), weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return unfinished.replace(target)


def _add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """Every token has a text: what the client counts are chunks with text."""
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{number}" for number in range(size)])
    writer.add_token_scores([-float(number) for number in range(size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * size)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _name_of(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_NAMES_OF_LAYER[rest]}"


def _interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp rotates neighbouring dimensions where the checkpoint's layout rotates halves."""
    return weight.view(heads, 2, weight.shape[0] // heads // 2, -1).transpose(1, 2).reshape(weight.shape)


def _add(writer: gguf.GGUFWriter, name: str, weight: torch.Tensor) -> None:
    if weight.dim() == 1:
        writer.add_tensor(name, weight.float().numpy())
        return
    rounded = weight.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
    writer.add_tensor(name, np.ascontiguousarray(rounded), raw_dtype=gguf.GGMLQuantizationType.BF16)


NUM_LAYERS = 16


def _trained(_: Path) -> Path:
    """SmolLM2-135M-Instruct. Raises DemoWeightsUnavailable."""
    return demo_weights(lambda _fetched: None).llama


CHECKPOINTS: Mapping[str, Callable[[Path], Path]] = MappingProxyType(
    {
        "random-100m": lambda cache: llama_checkpoint(cache, num_layers=NUM_LAYERS),
        "smollm2-135m": _trained,
        "qwen2.5-0.5b-shape": qwen_checkpoint,
    }
)
"""By name: writes or fetches it into a cache folder, once."""
