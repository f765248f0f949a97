"""Checkpoints of known shapes with random weights, in Hugging Face's layout: what a fleet loads.

Weights are drawn where there is room for speed, a layer at a time, and a token is a byte.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from fleets.byte_checkpoint import byte_tokenizer
from gpu.random_models import SHAPES
from safetensors.torch import save_file
from torch import Tensor

from pdmux_actor.models.config import DecoderConfig
from pdmux_actor.models.demo_tokenizer import CHAT_TEMPLATE, TURN_END

_STD = 0.02
_MODEL_TYPES = {"LlamaForCausalLM": "llama", "Qwen3ForCausalLM": "qwen3"}


def write_random_checkpoint(folder: Path, shape: str, device: torch.device, max_model_len: int) -> None:
    """In bfloat16; the same bytes for the same shape on the same device."""
    folder.mkdir(parents=True)
    declared = dict(SHAPES[shape]) | {"max_position_embeddings": max_model_len}
    (architecture,) = declared["architectures"]
    config = {**declared, "model_type": _MODEL_TYPES[architecture], "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": TURN_END, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    file_of: dict[str, str] = {}
    torch.manual_seed(0)
    for number, tensors in enumerate(_files(DecoderConfig.from_config(shape, config, "bfloat16"), device)):
        name = f"model-{number:05d}.safetensors"
        save_file({key: tensor.cpu() for key, tensor in tensors.items()}, str(folder / name))
        file_of.update(dict.fromkeys(tensors, name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": file_of}))


def _files(config: DecoderConfig, device: torch.device) -> Iterator[dict[str, Tensor]]:
    """Tensors by name, a file for each layer and one for what is outside them."""
    spec = config.spec

    def weight(*size: int) -> Tensor:
        return torch.randn(*size, dtype=torch.bfloat16, device=device).mul_(_STD)

    def norm(size: int) -> Tensor:
        return torch.ones(size, dtype=torch.bfloat16, device=device)

    outside = {
        "model.embed_tokens.weight": weight(spec.vocab_size, spec.hidden_size),
        "model.norm.weight": norm(spec.hidden_size),
    }
    if not spec.tie_word_embeddings:
        outside["lm_head.weight"] = weight(spec.vocab_size, spec.hidden_size)
    yield outside
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    for layer in range(spec.num_layers):
        named = {
            "input_layernorm": norm(spec.hidden_size),
            "self_attn.q_proj": weight(queries, spec.hidden_size),
            "self_attn.k_proj": weight(keys, spec.hidden_size),
            "self_attn.v_proj": weight(keys, spec.hidden_size),
            "self_attn.o_proj": weight(spec.hidden_size, queries),
            "post_attention_layernorm": norm(spec.hidden_size),
            "mlp.gate_proj": weight(spec.intermediate_size, spec.hidden_size),
            "mlp.up_proj": weight(spec.intermediate_size, spec.hidden_size),
            "mlp.down_proj": weight(spec.hidden_size, spec.intermediate_size),
        }
        if config.traits.qk_norm:
            named |= {"self_attn.q_norm": norm(spec.head_dim), "self_attn.k_norm": norm(spec.head_dim)}
        yield {f"model.layers.{layer}.{name}.weight": tensor for name, tensor in named.items()}
