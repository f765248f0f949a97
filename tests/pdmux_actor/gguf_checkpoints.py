"""Writes GGUF files of small checkpoints, as llama.cpp's converter lays them out."""

import json
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

Kind = gguf.GGMLQuantizationType

_ARCHITECTURES = {"llama": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe"}
_EXPERTS = {"w1": "gate", "w2": "down", "w3": "up", "gate_proj": "gate", "down_proj": "down", "up_proj": "up"}
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.gate": "ffn_gate_inp",
}


def write_gguf(
    checkpoint: Path,
    file: Path,
    kinds: Mapping[str, Kind],
    rest: Kind = Kind.F32,
    *,
    extra: Mapping[str, np.ndarray] | None = None,
    left_out: str | None = None,
    tensors_each: int = 0,
) -> None:
    """`kinds` of tensors by what their names hold, `rest` of other matrices; vectors and routers are F32.
    `tensors_each`: in several files of so many.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    tensors = load_file(checkpoint / "model.safetensors")
    writer = gguf.GGUFWriter(file, _ARCHITECTURES[config["model_type"]], split_max_tensors=tensors_each)
    _add_shape(writer, config)
    _add_tokenizer(writer, checkpoint)
    found = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        if ".experts." in stem:
            prefix, expert = stem.split(".experts.")
            number, part = expert.split(".")
            layer = prefix.split(".")[2]
            key = f"blk.{layer}.ffn_{_EXPERTS[part]}_exps.weight"
            found.setdefault(key, {})[int(number)] = tensor
            continue
        for theirs, ours in sorted(_NAMES.items(), key=lambda pair: -len(pair[0])):
            stem = stem.replace(theirs, ours)
        if config["model_type"] in ("llama", "mixtral") and stem.endswith(("attn_q", "attn_k")):
            heads = config["num_attention_heads" if stem.endswith("q") else "num_key_value_heads"]
            halves = tensor.reshape(heads, 2, -1, *tensor.shape[1:])
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        found[f"{stem}.{kind}"] = tensor
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor)
    found.pop(left_out, None)
    for name, tensor in found.items():
        if isinstance(tensor, dict):
            tensor = np.stack([tensor[number] for number in range(len(tensor))])
        kind = next((kind for part, kind in kinds.items() if part in name), rest)
        if tensor.ndim == 1 or "ffn_gate_inp" in name:
            kind = Kind.F32
        raw = _encoded(np.ascontiguousarray(tensor), kind, name)
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _encoded(tensor: np.ndarray, kind: Kind, name: str) -> np.ndarray:
    if kind not in (Kind.Q4_K, Kind.Q5_K, Kind.Q6_K):
        return gguf.quantize(tensor, kind)
    # The library reads these, and does not write them: any bytes are levels, scales are small.
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(list(name.encode()))
    raw = generator.integers(0, 256, (tensor.size // block, block_bytes), dtype=np.uint8)
    scales = (generator.random((len(raw), 2)) * 3e-4 + 1e-4).astype(np.float16)
    places = (208,) if kind == Kind.Q6_K else (0, 2)
    for number, first in enumerate(places):
        raw[:, first : first + 2] = scales[:, number : number + 1].copy().view(np.uint8)
    return raw.reshape(*tensor.shape[:-1], -1)


def _add_shape(writer: gguf.GGUFWriter, config: dict) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    experts = config.get("num_local_experts") or config.get("num_experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        if "moe_intermediate_size" in config:
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _add_tokenizer(writer: gguf.GGUFWriter, checkpoint: Path) -> None:
    stored = json.loads((checkpoint / "tokenizer.json").read_text())
    vocabulary = sorted(stored["model"]["vocab"], key=stored["model"]["vocab"].get)
    special = {token["content"] for token in stored["added_tokens"]}
    end = json.loads((checkpoint / "generation_config.json").read_text())["eos_token_id"]
    types = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in vocabulary]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocabulary)
    writer.add_token_types(types)
    merges = stored["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_eos_token_id(end[0])
    writer.add_eot_token_id(end[1])
    writer.add_chat_template("{% for message in messages %}{{ message.content }}{% endfor %}")
